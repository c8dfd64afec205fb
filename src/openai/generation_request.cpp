#include "openai/generation_request.h"

#include <fmt/format.h>

#include <climits>

#include "base/untrusted_json.h"

namespace weir::openai {
namespace {

// A message's parts, tools and schemas nest a few levels; nothing an API sends nests more.
constexpr JsonLimits kLimits{.bytes = 64 * kMiB, .depth = 64, .members = 2048};

void read_stop(const Fields& fields, std::vector<std::string>& into) {
  const Json* stop = fields.find("stop");
  if (!stop) return;
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > kMostStops) {
    return fields.fail("stop", "array_above_max_length",
                       fmt::format("'stop' has {} strings, more than {}", list.size(), kMostStops));
  }
  for (const Json& one : list) {
    if (!one.is_string()) {
      return fields.wrong_type("stop", "a string or an array of strings", one);
    }
    const auto& text = one.get_ref<const std::string&>();
    if (text.size() > kLongestStop) {
      return fields.fail(
          "stop", "string_above_max_length",
          fmt::format("a string of 'stop' has {} bytes, more than {}", text.size(), kLongestStop));
    }
    if (!text.empty()) into.push_back(text);
  }
}

// {"1234": -100}: token ids are keys.
void read_logit_bias(const Fields& fields, std::vector<std::pair<int32_t, double>>& into) {
  const Json* biases = fields.object("logit_bias");
  if (!biases) return;
  if (biases->size() > kMostBiases) {
    return fields.fail(
        "logit_bias", "invalid_value",
        fmt::format("'logit_bias' has {} tokens, more than {}", biases->size(), kMostBiases));
  }
  for (const auto& [key, bias] : biases->items()) {
    const bool is_id =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!is_id) {
      return fields.fail("logit_bias", "invalid_value", "a key of 'logit_bias' is not a token id");
    }
    if (!bias.is_number()) return fields.wrong_type("logit_bias", "numbers by token id", bias);
    const double value = bias.get<double>();
    if (!(value >= -100 && value <= 100)) {
      return fields.fail("logit_bias", "invalid_value",
                         fmt::format("a bias must be from -100 to 100, and is {}", value));
    }
    into.emplace_back(std::stoi(key), value);
  }
}

void read_conversation(const Fields& fields, std::string& into) {
  const std::optional<std::string> name = fields.string("conversation", SIZE_MAX);
  if (!name) return;
  if (const auto problem = conversation_name_problem(*name)) {
    return fields.fail("conversation", "invalid_value", *problem);
  }
  into = *name;
}

}  // namespace

Parsed<Json> parse_body(std::string_view body) {
  Result<Json> json = parse_untrusted_ordered(body, kLimits);
  ApiError error;
  if (!json) {
    error.code = "invalid_json";
    error.message = "the body: " + json.error().message();
    return error;
  }
  if (!json->is_object()) {
    error.code = "invalid_type";
    error.message = "the body must be a JSON object, and is " + std::string(type_name(*json));
    return error;
  }
  return std::move(*json);
}

void read_generation(const Fields& fields, Generation& g) {
  g.model = fields.string("model", 1024).value_or("");
  g.stream = fields.boolean_or("stream", false);
  if (const Json* options = fields.object("stream_options")) {
    std::optional<ApiError> error;
    const Fields nested(*options, "stream_options", error);
    g.include_usage = nested.boolean_or("include_usage", false);
    if (error) fields.fail("stream_options.include_usage", error->code, error->message);
  }
  g.return_progress = fields.boolean_or("return_progress", false);
  // The first is llama.cpp's name, and -1 its word for no limit.
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    const auto most = fields.integer(name, -1, INT32_MAX);
    if (most) g.max_tokens = *most < 0 ? std::nullopt : most;
  }
  g.n = fields.integer("n", 1, kMostChoices).value_or(1);
  read_stop(fields, g.stop);
  g.ignore_end = fields.boolean_or("ignore_eos", false);
  g.seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  g.temperature = fields.number("temperature", 0, 100);
  g.top_p = fields.number("top_p", 0, 1);
  g.min_p = fields.number("min_p", 0, 1);
  g.top_k = fields.integer("top_k", -1, INT32_MAX);
  g.presence_penalty = fields.number("presence_penalty", -2, 2);
  g.frequency_penalty = fields.number("frequency_penalty", -2, 2);
  // Two names are in use for it.
  g.repeat_penalty = fields.number("repeat_penalty", 0.01, 100);
  if (const auto r = fields.number("repetition_penalty", 0.01, 100)) g.repeat_penalty = r;
  g.repeat_last_n = fields.integer("repeat_last_n", -1, 1 << 24);
  read_logit_bias(fields, g.logit_bias);
  g.grammar = fields.string("grammar", kMostGrammarBytes).value_or("");
  read_conversation(fields, g.conversation);
}

std::optional<std::string> conversation_name_problem(std::string_view name) {
  if (name.empty() || name.size() > 128) {
    return fmt::format("a conversation's name has 1 to 128 bytes, not {}", name.size());
  }
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return "a conversation's name has no control characters";
    }
  }
  try {  // headers come in any encoding
    (void)Json(name).dump();
  } catch (const Json::exception&) {
    return "a conversation's name is UTF-8";
  }
  return std::nullopt;
}

}  // namespace weir::openai

#include <fmt/format.h>

#include "base/untrusted_json.h"
#include "openai/generation_request.h"

namespace weir::openai {
namespace {

// Token ids, or false with the error set.
bool read_tokens(const Fields& fields, std::string_view key, const Json& list,
                 std::vector<int32_t>& into) {
  into.reserve(list.size());
  for (const Json& one : list) {
    const std::optional<int64_t> token = json_integer(one);
    if (!token) {
      fields.wrong_type(key, "an array of token ids", one);
      return false;
    }
    if (*token < 0 || *token > INT32_MAX) {
      fields.fail(key, "invalid_value", fmt::format("{} is not a token id", *token));
      return false;
    }
    into.push_back(static_cast<int32_t>(*token));
  }
  return true;
}

// A string, token ids, or an array of either.
void read_prompts(const Fields& fields, std::vector<CompletionRequest::Prompt>& into) {
  const Json* prompt = fields.find("prompt");
  if (!prompt) return fields.missing("prompt");
  if (!prompt->is_string() && !prompt->is_array()) {
    return fields.wrong_type("prompt", "a string or an array", *prompt);
  }
  const bool is_one = prompt->is_string() || (!prompt->empty() && prompt->front().is_number());
  const size_t count = is_one ? 1 : prompt->size();
  if (count == 0 || count > static_cast<size_t>(kMostChoices)) {
    return fields.fail("prompt", "invalid_value",
                       fmt::format("'prompt' must have 1 to {} prompts", kMostChoices));
  }
  for (size_t i = 0; i < count; ++i) {
    const Json& one = is_one ? *prompt : (*prompt)[i];
    if (one.is_string()) {
      into.emplace_back(one.get<std::string>());
    } else if (one.is_array()) {
      std::vector<int32_t> tokens;
      if (!read_tokens(fields, "prompt", one, tokens)) return;
      into.emplace_back(std::move(tokens));
    } else {
      return fields.wrong_type("prompt", "strings or arrays of token ids", one);
    }
  }
}

void read_choices(const Fields& fields, CompletionRequest& request) {
  request.best_of = fields.integer("best_of", 1, kMostChoices).value_or(request.n);
  if (request.best_of < request.n) {
    fields.fail("best_of", "invalid_value",
                fmt::format("'best_of' is {} and 'n' is {}; it must not be less", request.best_of,
                            request.n));
  }
  if (request.best_of > request.n && request.stream) {
    fields.fail("best_of", "invalid_value", "'best_of' over 'n' cannot be streamed");
  }
  const auto total = static_cast<int64_t>(request.prompts.size()) * request.best_of;
  if (total > kMostChoices) {
    fields.fail("prompt", "invalid_value",
                fmt::format("{} prompts with {} replies each are more than {} replies",
                            request.prompts.size(), request.best_of, kMostChoices));
  }
  if (total > 1 && !request.conversation.empty()) {
    fields.fail("conversation", "invalid_value", "'conversation' holds one reply to one prompt");
  }
}

}  // namespace

Parsed<CompletionRequest> parse_completion_request(std::string_view body) {
  Parsed<Json> json = parse_body(body);
  if (auto* error = std::get_if<ApiError>(&json)) return *error;
  std::optional<ApiError> error;
  const Fields fields(std::get<Json>(json), "", error);
  CompletionRequest request;
  read_generation(fields, request);
  read_prompts(fields, request.prompts);
  read_choices(fields, request);
  if (const auto top = fields.integer("logprobs", 0, kMostLogprobs)) {
    request.n_logprobs = static_cast<int32_t>(*top);
  }
  request.echo = fields.boolean_or("echo", false);
  if (request.echo && request.n_logprobs >= 0) {
    fields.fail("echo", "unsupported_parameter",
                "'echo' cannot go with 'logprobs': those of the prompt are not computed");
  }
  if (const auto suffix = fields.string("suffix", SIZE_MAX); suffix && !suffix->empty()) {
    fields.fail("suffix", "unsupported_parameter", "'suffix' is not supported");
  }
  if (error) return *error;
  return request;
}

Parsed<TokenizeRequest> parse_tokenize_request(std::string_view body) {
  Parsed<Json> json = parse_body(body);
  if (auto* error = std::get_if<ApiError>(&json)) return *error;
  std::optional<ApiError> error;
  const Fields fields(std::get<Json>(json), "", error);
  TokenizeRequest request;
  const std::optional<std::string> content = fields.string("content", SIZE_MAX);
  if (!content) fields.missing("content");
  request.content = content.value_or("");
  request.add_special = fields.boolean_or("add_special", false);
  request.parse_special = fields.boolean_or("parse_special", true);
  request.with_pieces = fields.boolean_or("with_pieces", false);
  if (error) return *error;
  return request;
}

Parsed<std::vector<int32_t>> parse_detokenize_request(std::string_view body) {
  Parsed<Json> json = parse_body(body);
  if (auto* error = std::get_if<ApiError>(&json)) return *error;
  std::optional<ApiError> error;
  const Fields fields(std::get<Json>(json), "", error);
  std::vector<int32_t> tokens;
  if (const Json* list = fields.array("tokens")) {
    read_tokens(fields, "tokens", *list, tokens);
  } else {
    fields.missing("tokens");
  }
  if (error) return *error;
  return tokens;
}

}  // namespace weir::openai

#include "server/openai/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>

#include "engine/schema_check.h"
#include "engine/text_stream.h"

namespace weir {
namespace {

using openai::ApiError;
using openai::Parsed;

ApiError invalid(std::string code, std::string message, std::string param) {
  ApiError error;
  error.code = std::move(code);
  error.message = std::move(message);
  error.param = std::move(param);
  return error;
}

// The first choice has the request's own seed; the others' follow from it.
uint32_t choice_seed(uint64_t seed, uint64_t choice) {
  if (choice == 0) return static_cast<uint32_t>(seed);
  std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                         static_cast<uint32_t>(choice)};
  uint32_t derived = 0;
  sequence.generate(&derived, &derived + 1);
  return derived;
}

// As llama.cpp's server has it, -1 is as good as none.
uint64_t request_seed(const openai::Generation& from) {
  if (from.seed && *from.seed != -1) return static_cast<uint64_t>(*from.seed);
  return std::random_device{}();
}

void add_choices(const Request& request, int64_t n, uint64_t seed, size_t prompt, Prepared& to) {
  for (int64_t i = 0; i < n; ++i) {
    PreparedChoice choice{request, std::ssize(request.prompt), prompt};
    choice.request.sampling.seed = choice_seed(seed, to.choices.size());
    to.choices.push_back(std::move(choice));
  }
}

Prepared prepared_for(const openai::Generation& from) {
  Prepared to;
  to.stream = from.stream;
  to.include_usage = from.include_usage;
  to.return_progress = from.return_progress;
  to.n_shown = from.n;
  to.shows_logprobs = from.n_logprobs >= 0;
  return to;
}

ChatInput chat_input(const openai::ChatRequest& from) {
  ChatInput input;
  for (const openai::Message& message : from.messages) {
    ChatMessage m{message.role, ""};
    if (message.is_array) {
      m.parts = message.parts;
    } else if (!message.parts.empty()) {
      m.content = message.parts.front();
    }
    m.reasoning = message.reasoning;
    for (const openai::ToolCall& call : message.tool_calls) {
      m.tool_calls.push_back({call.id, call.name, call.arguments});
    }
    m.tool_call_id = message.tool_call_id;
    m.name = message.name;
    input.messages.push_back(std::move(m));
  }
  for (const openai::Tool& tool : from.tools) {
    input.tools.push_back({tool.name, tool.description, tool.parameters});
  }
  switch (from.tool_choice) {
    case openai::ToolChoice::automatic:
      input.tool_choice = ChatToolChoice::automatic;
      break;
    case openai::ToolChoice::none:
      input.tool_choice = ChatToolChoice::none;
      break;
    case openai::ToolChoice::required:
      input.tool_choice = ChatToolChoice::required;
      break;
  }
  input.parallel_tool_calls = from.parallel_tool_calls;
  input.json_schema = from.json_schema;
  input.enable_thinking = from.enable_thinking.value_or(true);
  for (const auto& [name, value] : from.template_arguments) input.arguments[name] = value;
  return input;
}

void set(float& to, const std::optional<double>& from) {
  if (from) to = static_cast<float>(*from);
}

}  // namespace

ApiError to_api_error(const Status& error) {
  ApiError out;
  out.message = error.message();
  switch (error.code()) {
    case Code::invalid_input:
    case Code::unsupported:
    case Code::corrupt:
      break;
    case Code::over_budget:
      out.code = "context_length_exceeded";
      break;
    case Code::not_found:
      out.status = 404;
      out.type = "not_found_error";
      break;
    case Code::unavailable:
      out.status = 503;
      out.type = "unavailable_error";
      out.code = "queue_timeout";
      break;
    case Code::cancelled:
      out.status = 503;
      out.type = "unavailable_error";
      out.code = "cancelled";
      break;
    default:
      out.status = 500;
      out.type = "server_error";
  }
  return out;
}

Parsed<Request> Preparer::common(const openai::Generation& from, uint32_t tenant) const {
  Request request;
  request.tenant = tenant;
  request.conversation_name = from.conversation;
  request.max_new_tokens = from.max_tokens.value_or(options_.max_new_tokens);
  request.stop = from.stop;
  request.ignore_end = from.ignore_end;
  request.n_logprobs = from.n_logprobs;

  SamplingParams& s = request.sampling = options_.sampling;
  set(s.temperature, from.temperature);
  set(s.min_p, from.min_p);
  set(s.presence_penalty, from.presence_penalty);
  set(s.frequency_penalty, from.frequency_penalty);
  set(s.repeat_penalty, from.repeat_penalty);
  // 0 leaves the likeliest token, as everything that is small enough does.
  if (from.top_p) s.top_p = std::max(static_cast<float>(*from.top_p), 1e-6f);
  if (from.top_k) s.top_k = static_cast<int32_t>(std::max<int64_t>(*from.top_k, 0));
  if (from.repeat_last_n) s.repeat_last_n = static_cast<int32_t>(*from.repeat_last_n);
  for (const auto& [token, bias] : from.logit_bias) {
    if (token >= tokenizer_.size()) {
      return invalid(
          "invalid_value",
          fmt::format("'logit_bias' has token {}; the vocabulary has {}", token, tokenizer_.size()),
          "logit_bias");
    }
    // OpenAI: "-100 should result in a ban".
    s.logit_bias.emplace_back(
        token, bias <= -100 ? -std::numeric_limits<float>::infinity() : static_cast<float>(bias));
  }
  return request;
}

std::optional<ApiError> Preparer::check_length(const std::vector<Token>& prompt) const {
  if (std::ssize(prompt) < max_context_) return std::nullopt;
  return invalid("context_length_exceeded",
                 fmt::format("the prompt has {} tokens and the context holds {}, one of them for "
                             "the reply; shorten the prompt",
                             prompt.size(), max_context_),
                 "");
}

Parsed<ChatPrompt> Preparer::apply(const openai::ChatRequest& from, ChatInput& input) const {
  if (!template_) {
    return invalid("no_chat_template",
                   "this model has no chat template; use /v1/completions with a plain prompt", "");
  }
  input = chat_input(from);
  if (!input.json_schema.empty()) {
    if (Status s = check_schema(input.json_schema); !s.ok())
      return invalid("invalid_schema", s.message(), "response_format");
  }
  Result<ChatPrompt> prompt = template_->apply(input);
  if (!prompt) return invalid("", prompt.error().message(), "messages");
  return std::move(*prompt);
}

Parsed<std::string> Preparer::render(const openai::ChatRequest& from) const {
  ChatInput input;
  Parsed<ChatPrompt> prompt = apply(from, input);
  if (auto* error = std::get_if<ApiError>(&prompt)) return *error;
  return std::get<ChatPrompt>(prompt).text;
}

Parsed<Prepared> Preparer::chat(const openai::ChatRequest& from, uint32_t tenant) const {
  ChatInput input;
  Parsed<ChatPrompt> applied = apply(from, input);
  if (auto* error = std::get_if<ApiError>(&applied)) return *error;
  ChatPrompt& prompt = std::get<ChatPrompt>(applied);
  Parsed<Request> made = common(from, tenant);
  if (auto* error = std::get_if<ApiError>(&made)) return *error;
  Request& request = std::get<Request>(made);

  Result<std::vector<Token>> tokens = tokenizer_.tokenize(prompt.text, true, true);
  if (!tokens) return to_api_error(tokens.error());
  request.prompt = std::move(*tokens);
  if (auto error = check_length(request.prompt)) return *error;
  request.stop.insert(request.stop.end(), prompt.stop.begin(), prompt.stop.end());
  for (const std::string& word : prompt.visible_words) {
    const std::vector<Token> mark = marks(word);
    if (mark.size() == 1) request.visible_tokens.push_back(mark[0]);
  }
  if (auto error = add_grammar(from, prompt, request)) return *error;
  add_restart_point(input, prompt, request);

  Prepared to = prepared_for(from);
  to.is_chat = true;
  to.format = prompt.format;
  to.thinking_ends = prompt.thinking_ends;
  add_choices(request, from.n, request_seed(from), 0, to);
  return to;
}

std::vector<Token> Preparer::marks(const std::string& text) const {
  const Result<std::vector<Token>> tokens = tokenizer_.tokenize(text, false, true);
  return tokens ? *tokens : std::vector<Token>{};
}

std::optional<ApiError> Preparer::add_grammar(const openai::ChatRequest& from,
                                              const ChatPrompt& prompt, Request& request) const {
  GrammarParams params;
  const char* param = "grammar";
  if (!from.grammar.empty()) {
    params.text = from.grammar;
  } else if (!prompt.grammar.empty()) {
    param = from.json_schema.empty() ? "tools" : "response_format";
    params.text = prompt.grammar;
    params.prefix = marks(prompt.reply_start);
    params.triggers.patterns = prompt.trigger_patterns;
    for (const std::string& word : prompt.trigger_words) {
      const std::vector<Token> mark = marks(word);
      const auto& visible = request.visible_tokens;
      if (mark.size() == 1 && std::find(visible.begin(), visible.end(), mark[0]) != visible.end()) {
        params.triggers.tokens.push_back(mark[0]);
      } else {
        params.triggers.words.push_back(word);
      }
    }
    if (!prompt.thinking_start.empty()) params.reasoning.start = marks(prompt.thinking_start);
    for (const std::string& end : prompt.thinking_ends) params.reasoning.ends.push_back(marks(end));
  } else {
    return std::nullopt;
  }
  Result<Grammar> grammar = Grammar::create(params, tokenizer_);
  if (!grammar) return invalid("invalid_grammar", grammar.error().message(), param);
  request.sampling.parsed_grammar = std::make_shared<const Grammar>(std::move(*grammar));
  return std::nullopt;
}

// Where another question would branch off: the engine can then go back there without reading all
// before it again.
void Preparer::add_restart_point(const ChatInput& input, const ChatPrompt& prompt,
                                 Request& request) const {
  const size_t start = template_->last_turn_start(input, prompt);
  const Result<std::vector<Token>> before =
      tokenizer_.tokenize(std::string_view(prompt.text).substr(0, start), true, true);
  if (!before) return;
  const auto end = before->begin() + std::min(std::ssize(*before), std::ssize(request.prompt) - 1);
  const auto common = std::mismatch(before->begin(), end, request.prompt.begin()).first;
  if (common != before->begin()) request.restart_at.push_back(common - before->begin());
}

Parsed<Prepared> Preparer::completion(const openai::CompletionRequest& from,
                                      uint32_t tenant) const {
  Parsed<Request> made = common(from, tenant);
  if (auto* error = std::get_if<ApiError>(&made)) return *error;
  Request& request = std::get<Request>(made);
  if (!from.grammar.empty()) {
    Result<Grammar> grammar = Grammar::create({.text = from.grammar}, tokenizer_);
    if (!grammar) return invalid("invalid_grammar", grammar.error().message(), "grammar");
    request.sampling.parsed_grammar = std::make_shared<const Grammar>(std::move(*grammar));
  }
  // The best are chosen by their log-probabilities.
  if (from.best_of > from.n) request.n_logprobs = std::max(request.n_logprobs, 0);

  Prepared to = prepared_for(from);
  const uint64_t seed = request_seed(from);
  for (size_t i = 0; i < from.prompts.size(); ++i) {
    if (const auto* text = std::get_if<std::string>(&from.prompts[i])) {
      Result<std::vector<Token>> tokens = tokenizer_.tokenize(*text, true, true);
      if (!tokens) return to_api_error(tokens.error());
      request.prompt = std::move(*tokens);
      if (from.echo) to.echoes.push_back(*text);
    } else {
      request.prompt = std::get<std::vector<int32_t>>(from.prompts[i]);
      for (const Token token : request.prompt) {
        if (token >= tokenizer_.size()) {
          return invalid(
              "invalid_value",
              fmt::format("'prompt' has token {}; the vocabulary has {}", token, tokenizer_.size()),
              "prompt");
        }
      }
      if (from.echo) to.echoes.push_back(valid_utf8(tokenizer_.text(request.prompt)));
    }
    if (request.prompt.empty()) return invalid("invalid_value", "'prompt' is empty", "prompt");
    if (auto error = check_length(request.prompt)) return *error;
    add_choices(request, from.best_of, seed, i, to);
  }
  return to;
}

}  // namespace weir

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "openai/api_error.h"

namespace weir::openai {

// Bounds of what a request may ask for; docs/http-api.md names them.
constexpr int64_t kMostChoices = 32;  // n, and prompts times n
constexpr size_t kMostStops = 16;
constexpr size_t kLongestStop = 512;  // bytes
constexpr size_t kMostBiases = 1024;
constexpr int64_t kMostLogprobs = 20;
constexpr size_t kMostTools = 256;
constexpr size_t kMostGrammarBytes = 64 << 10;

// What the two kinds of completion have in common. Absent numbers are the server's defaults.
struct Generation {
  std::string model;  // as asked for; any is served
  bool stream = false;
  bool include_usage = false;    // stream_options.include_usage
  bool return_progress = false;  // extension: events while a long prompt is read
  std::optional<int64_t> max_tokens;
  int64_t n = 1;
  std::vector<std::string> stop;
  bool ignore_end = false;  // extension: ignore_eos
  int32_t n_logprobs = -1;  // -1: none wanted
  std::optional<int64_t> seed;
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> presence_penalty, frequency_penalty, repeat_penalty;
  std::optional<int64_t> top_k, repeat_last_n;
  std::vector<std::pair<int32_t, double>> logit_bias;  // token, -100 to 100
  std::string grammar;                                 // extension: GBNF
  std::string conversation;                            // extension: name
};

struct ToolCall {
  std::string id, name;
  std::string arguments;  // JSON as text
};

struct Message {
  std::string role;                // "system", "developer", "user", "assistant", "tool"
  std::vector<std::string> parts;  // the texts of its content
  bool is_array = false;           // the content came as parts
  std::string reasoning;
  std::vector<ToolCall> tool_calls;
  std::string tool_call_id, name;
};

struct Tool {
  std::string name, description;
  std::string parameters;  // JSON schema as text
};

enum class ToolChoice { automatic, none, required };

struct ChatRequest : Generation {
  std::vector<Message> messages;
  std::vector<Tool> tools;  // those that may be called
  ToolChoice tool_choice = ToolChoice::automatic;
  bool parallel_tool_calls = true;
  // JSON schema as text that the reply must follow; "{}": any JSON object. Empty: none.
  std::string json_schema;
  std::optional<bool> enable_thinking;
  std::vector<std::pair<std::string, std::string>> template_arguments;  // name, JSON as text
};

struct CompletionRequest : Generation {
  using Prompt = std::variant<std::string, std::vector<int32_t>>;
  std::vector<Prompt> prompts;
  bool echo = false;
  int64_t best_of = 1;
};

struct TokenizeRequest {
  std::string content;
  bool add_special = false, parse_special = true, with_pieces = false;
};

template <typename T>
using Parsed = std::variant<T, ApiError>;

// Bodies as they came. Unknown fields are ignored; known ones must have their type.
Parsed<ChatRequest> parse_chat_request(std::string_view body);
Parsed<CompletionRequest> parse_completion_request(std::string_view body);
Parsed<TokenizeRequest> parse_tokenize_request(std::string_view body);
Parsed<std::vector<int32_t>> parse_detokenize_request(std::string_view body);

// Nothing if `name` may name a conversation: 1 to 128 bytes of UTF-8 without control characters.
std::optional<std::string> conversation_name_problem(std::string_view name);

}  // namespace weir::openai

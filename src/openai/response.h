#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "openai/request.h"

namespace weir::openai {

// What all parts of one answer share.
struct AnswerHead {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;
};

// "chatcmpl-" and 32 random letters and digits; `prefix` with its dash.
std::string random_id(std::string_view prefix);

struct UsageCounts {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::optional<int64_t> reasoning_tokens;  // of the completion, where the template marks them
};

struct PieceLogprob {
  std::string bytes;  // of the token, maybe not UTF-8
  float logprob = 0;
};
struct LogprobEntry {
  PieceLogprob chosen;
  std::vector<PieceLogprob> top;
};

// How one choice came to be: weir's own extension beside finish_reason.
struct ChoiceFacts {
  std::string finish;  // weir's reason: "end_of_turn", "stop_string", "budget_full", ...
  double prompt_ms = 0, prompt_tokens_per_second = 0;
  double reply_ms = 0, tokens_per_second = 0;
  // Of the prompt in the KV: why not more of it came from there, the index of the first token that
  // differs from what is stored, the point used, tokens before it read again to rebuild windows.
  std::string miss;
  int64_t first_new_token = 0, restart_at = 0, healed_tokens = 0;
};

// What a choice gained since the last event.
struct ToolCallDelta {
  size_t index = 0;
  std::string id, name;  // only with the first delta of a call
  std::string arguments;
};
struct ChoiceDelta {
  std::string reasoning, content;
  std::vector<ToolCallDelta> tool_calls;
  std::vector<LogprobEntry> logprobs;

  bool empty() const {
    return reasoning.empty() && content.empty() && tool_calls.empty() && logprobs.empty();
  }
};

struct FinishedChoice {
  std::string reasoning, content;
  std::vector<ToolCall> tool_calls;
  std::vector<LogprobEntry> logprobs;
  bool has_logprobs = false;
  std::string finish_reason;
  ChoiceFacts facts;
};

// --- whole answers ---
Json chat_answer(const AnswerHead& head, const std::vector<FinishedChoice>& choices,
                 const UsageCounts& usage);
// `echoes`: the prompt of each choice, or empty.
Json completion_answer(const AnswerHead& head, const std::vector<FinishedChoice>& choices,
                       const std::vector<std::string>& echoes, const UsageCounts& usage);

// --- events of a stream; `index` is the choice's ---
Json chat_role_event(const AnswerHead& head, size_t index);
// A delta may need several: content, then each tool call.
std::vector<Json> chat_delta_events(const AnswerHead& head, size_t index, const ChoiceDelta& delta);
Json chat_finish_event(const AnswerHead& head, size_t index, const std::string& finish_reason,
                       const ChoiceFacts& facts);
// `text_offset`: bytes of the choice's text before this delta.
Json completion_delta_event(const AnswerHead& head, size_t index, const ChoiceDelta& delta,
                            size_t text_offset);
Json completion_finish_event(const AnswerHead& head, size_t index, const std::string& finish_reason,
                             const ChoiceFacts& facts);
Json usage_event(const AnswerHead& head, bool is_chat, const UsageCounts& usage);
Json progress_event(const AnswerHead& head, bool is_chat, size_t index, int64_t total,
                    int64_t cached, int64_t processed, double time_ms);

// One server-sent event.
std::string sse(const Json& data);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace weir::openai

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/logprobs.h"
#include "engine/sampler.h"
#include "engine/tokenizer.h"
#include "kv/kv_cache.h"

namespace weir {

enum class RequestId : uint64_t {};

// Why a reply ended. Only `failed` carries an error.
enum class FinishReason {
  end_of_turn,   // the model said so
  stop_string,   // a stop string of the request appeared
  length,        // max_new_tokens reached
  context_full,  // the engine's context limit reached
  budget_full,   // the KV budget leaves no room for another token
  cancelled,
  failed,
};
constexpr int kFinishReasonCount = 7;
const char* finish_reason_name(FinishReason reason);

struct Request {
  std::vector<Token> prompt;    // the whole prompt, whatever of it is already in the KV
  int64_t max_new_tokens = -1;  // -1: until something else ends the reply
  SamplingParams sampling;
  std::vector<std::string> stop;  // not part of the text
  bool ignore_end = false;        // go on after an end-of-turn token
  // Control tokens that are part of the text all the same: marks of tool calls or of reasoning.
  std::vector<Token> visible_tokens;
  // Report the log-probability of each token and of this many of the likeliest. -1: do not.
  int32_t n_logprobs = -1;

  // Prompt lengths at which the engine should keep a restart point, ascending: the start of the
  // last user turn, say, where another question would branch off.
  std::vector<int64_t> restart_at;
  uint32_t tenant = 0;            // whose prefixes may be reused; 0: everybody's without a key
  std::string conversation_name;  // a named conversation of that tenant; empty: none
  // Fails as unavailable when it could not be let in by then.
  std::chrono::steady_clock::time_point start_before = std::chrono::steady_clock::time_point::max();
};

struct Usage {
  int64_t prompt_tokens = 0;  // always the whole prompt
  int64_t cached_tokens = 0;  // of these, taken from the KV
  int64_t completion_tokens = 0;
};

// What became of looking for the prompt in the KV.
struct Reuse {
  MissReason miss = MissReason::none;  // why not more of it was found
  int64_t common = 0;                  // index of the first token that differs from what is stored
  int64_t restart = 0;                 // the point that was used: no token before it was missing
  int64_t healed = 0;                  // tokens before it that were read again, to rebuild windows
};

struct Timings {
  double ttft_ms = 0;          // from submission to the first token
  double prefill_ms = 0;       // from the first step to the first token
  double decode_ms = 0;        // from the first token to the last
  int64_t prefill_tokens = 0;  // computed, not cached
  int64_t decode_tokens = 0;   // steps after the first token

  double prefill_tps() const {
    return prefill_ms > 0 ? 1e3 * static_cast<double>(prefill_tokens) / prefill_ms : 0;
  }
  double decode_tps() const {
    return decode_ms > 0 ? 1e3 * static_cast<double>(decode_tokens) / decode_ms : 0;
  }
};

struct Reply {
  FinishReason reason = FinishReason::failed;
  Status error;  // when reason is failed
  std::string text;
  std::vector<Token> tokens;  // an end-of-turn token included
  Usage usage;
  Reuse reuse;  // when it was let in first
  Timings timings;
  KvUsage kv;             // of this request when it ended, blocks that others share in full
  int64_t kv_tokens = 0;  // tokens of this request in the KV then
};

// A step of a reply.
struct TokenEvent {
  Token token = 0;
  // The text that has become certain (often empty); valid during the call.
  std::string_view text;
  // Null unless the request asked; valid during the call.
  const TokenLogprobs* logprobs = nullptr;
  // False for text held back until the end: `token` was reported before.
  bool is_new = true;
};

// Called on the engine's thread, which must not be kept waiting. Any may be empty.
struct RequestEvents {
  // The request was let in. Once, however often it has to give way later.
  std::function<void()> on_start;
  std::function<void(const TokenEvent& event)> on_token;
  // Prompt tokens computed so far, of those that had to be.
  std::function<void(int64_t done, int64_t total)> on_prompt_progress;
  // Exactly once.
  std::function<void(const Reply& reply)> on_finish;
};

}  // namespace weir

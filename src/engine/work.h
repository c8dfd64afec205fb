#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "engine/text_stream.h"
#include "kv/kv_cache.h"

namespace weir {

// A place in a prompt where a step must end, because a restart point is wanted there.
struct Stop {
  int64_t at = 0;  // tokens before it, a multiple of the block length
  RestartKind kind = RestartKind::schedule;
};

// A request from submission to its last event.
struct Work {
  using Clock = std::chrono::steady_clock;

  RequestId id{};
  Request request;
  RequestEvents events;
  Clock::time_point submitted, started, first_token, last_token;
  bool has_started = false;
  bool is_cancelled = false;
  bool was_let_in = false;
  bool is_named = false;       // counted as running in the registry of conversations
  int64_t most_committed = 0;  // before it had to give way: reading that again is recomputing
  std::optional<Sampler> sampler;
  TextStream stream{{}};
  SeqId seq{};
  bool has_seq = false;
  std::vector<Token> tokens;    // prompt and reply so far
  int64_t committed = 0;        // of tokens, in the KV
  std::vector<Stop> stops;      // ahead of `committed`, ascending
  int64_t granted = 0;          // tokens that admission found room for
  bool has_asked_tier = false;  // since it last had to wait
  std::optional<LoadId> load;   // what it waits for
  Clock::time_point load_until;
  int64_t promised_by_tier = 0;  // tokens that the tier had and did not bring
  Reply reply;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t pending() const { return length() - committed; }
  bool is_decoding() const { return pending() == 1 && !reply.tokens.empty(); }
  int64_t prompt_length() const { return static_cast<int64_t>(request.prompt.size()); }
};

}  // namespace weir

#pragma once

#include <optional>
#include <vector>

#include "engine/testing/tiny_engine.h"

namespace weir {

// n tokens that differ with `first` from the first one on.
inline std::vector<Token> text_tokens(int64_t n, Token first = 300) {
  std::vector<Token> tokens(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    tokens[static_cast<size_t>(i)] = first + static_cast<Token>((i * 7 + i / 13) % 211);
  return tokens;
}

inline std::vector<Token> joined(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A greedy reply of exactly n tokens.
inline Request saying(std::vector<Token> prompt, int64_t n) {
  Request request = greedy(std::move(prompt), n);
  request.ignore_end = true;
  return request;
}

// The reply of an engine that has read nothing before.
inline std::vector<Token> cold(const Request& request) {
  return reply_to(*make_tiny_core(), request).tokens;
}

inline int64_t read_again(const Reply& reply) {
  return reply.usage.prompt_tokens - reply.usage.cached_tokens;
}

// Submits; the reply is put where it is said when it is there.
inline RequestId submit_to(EngineCore& core, Request request, std::optional<Reply>& reply) {
  RequestEvents events;
  events.on_finish = [&reply](const Reply& ended) { reply = ended; };
  return core.submit(std::move(request), std::move(events));
}

}  // namespace weir

#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "geometry/kv_layout.h"

namespace weir {

// What it costs to go back anywhere in one conversation and read few tokens again.
struct RewindPlan {
  int64_t distance = 0;  // tokens between restart points on schedule; 0: none are needed
  // Most tokens that rebuilding lost windows from stored global rows reads again, wherever in the
  // conversation; -1 without local layers (nothing is ever lost).
  int64_t healing = -1;
  int64_t bound = 0;   // most tokens that going back to any point reads again
  int64_t points = 0;  // restart points at that length, the latest included
  Bytes bytes;         // local blocks that only they keep, beside those that the next token reads
};

// Tokens between restart points for a bound, a multiple of the block length; 0 where none are
// needed: without local layers, without a bound, or where rebuilding windows stays within it.
int64_t restart_distance(const KvLayout& layout, int64_t bound);

// For a conversation of `tokens` tokens. What the engine keeps for one that is read through once,
// as long as nothing is evicted.
RewindPlan plan_rewind(const KvLayout& layout, int64_t tokens, int64_t bound);

// The smallest bound, from 1024 tokens up in doublings, whose restart points for a conversation of
// `tokens` tokens take at most `room`; 0 if none does: only ends and branches are kept then.
int64_t rewind_bound_for(const KvLayout& layout, int64_t tokens, Bytes room);

}  // namespace weir

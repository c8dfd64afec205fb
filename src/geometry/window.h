// The window arithmetic. Mask, allocator, admission, planner and catalog call these functions;
// the formulas are written nowhere else. window_test.cpp holds each to a loop that lists positions.
//
// Notation: B tokens of a block, n committed tokens, c tokens of the step being computed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bytes.h"
#include "base/check.h"
#include "geometry/kv_geometry.h"

namespace weir {

// First position that the query at position n reads. The window includes the query itself.
// It is also the first position that still matters after n committed tokens.
constexpr int64_t first_visible(Retention r, int64_t n) {
  switch (r.kind) {
    case LayerKind::global:
      return 0;
    case LayerKind::sliding:
      return std::max<int64_t>(0, n - r.window + 1);
    case LayerKind::chunked:
      return n - n % r.window;
  }
  return 0;
}

// Keys that the query at position n reads, itself included.
constexpr int64_t visible_keys(Retention r, int64_t n) { return n - first_visible(r, n) + 1; }

// Index of the first block that is still needed after n committed tokens.
constexpr int64_t first_needed_block(Retention r, int64_t n, int64_t B) {
  return first_visible(r, n) / B;
}

// Blocks held between steps after n committed tokens.
constexpr int64_t held_blocks(Retention r, int64_t n, int64_t B) {
  return ceil_div(n, B) - std::min(first_needed_block(r, n, B), ceil_div(n, B));
}

// Most blocks that held_blocks can return for any n up to n_max: ceil((w-1)/B)+1 for a window that
// n_max outgrows. Tight.
constexpr int64_t max_held_blocks(Retention r, int64_t n_max, int64_t B) {
  switch (r.kind) {
    case LayerKind::global:
      return ceil_div(n_max, B);
    case LayerKind::sliding:
      // w-1 tokens that the next query reads: worst when they start on a block's last row.
      return std::min(ceil_div(n_max, B), r.window <= 1 ? 0 : ceil_div(r.window - 2, B) + 1);
    case LayerKind::chunked:
      return std::min(ceil_div(n_max, B), ceil_div(r.window - 1, B) + (r.window % B == 0 ? 0 : 1));
  }
  return 0;
}

// First block that a step of c tokens after n must store: older rows of the step are no longer
// visible at its end and live in one layer's scratch.
constexpr int64_t first_stored_block(Retention r, int64_t n, int64_t c, int64_t B) {
  return std::max(n / B, first_needed_block(r, n + c, B));
}

// Blocks that a step of c tokens after n takes on top of those held at n.
constexpr int64_t step_new_blocks(Retention r, int64_t n, int64_t c, int64_t B) {
  return std::max<int64_t>(
      0, ceil_div(n + c, B) - std::max(ceil_div(n, B), first_needed_block(r, n + c, B)));
}

}  // namespace weir

// The window arithmetic. Mask, allocator, admission, planner and catalog call these functions;
// the formulas are written nowhere else. window_test.cpp holds each to a loop that lists positions.
//
// Notation: B tokens of a block, n committed tokens, c tokens of the step being computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

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

// Blocks before the block boundary p that a sequence needs to go on from there.
constexpr int64_t restart_blocks(Retention r, int64_t p, int64_t B) {
  return p / B - first_needed_block(r, p, B);
}

// Blocks that hold rows first_row .. end_row-1 and, where end_row is inside a block, the open block
// even if none of its rows is wanted any more.
constexpr int64_t blocks_of_rows(int64_t first_row, int64_t end_row, int64_t B) {
  return ceil_div(end_row, B) - std::min(first_row / B, ceil_div(end_row, B));
}

// Blocks held between steps after n committed tokens.
constexpr int64_t held_blocks(Retention r, int64_t n, int64_t B) {
  return blocks_of_rows(first_visible(r, n), n, B);
}

// Most blocks that held_blocks can return for any n up to n_max: at most ceil((w-1)/B)+1 for a
// window that n_max outgrows. Tight once every alignment of window and block has occurred.
constexpr int64_t max_held_blocks(Retention r, int64_t n_max, int64_t B) {
  const int64_t w = r.window;
  switch (r.kind) {
    case LayerKind::global:
      return ceil_div(n_max, B);
    case LayerKind::sliding:
      // w-1 tokens that the next query reads: worst when they start on a block's last row. A
      // window of the query alone still has an open block, unless blocks are never open.
      return std::min(ceil_div(n_max, B), w > 1 ? ceil_div(w - 2, B) + 1 : (B > 1 ? 1 : 0));
    case LayerKind::chunked: {
      // Up to w-1 tokens of the chunk. Chunks start at multiples of gcd(w, B) inside a block: worst
      // at the last of them.
      const int64_t worst_start = B - std::gcd(w, B);
      return std::min(ceil_div(n_max, B), ceil_div(worst_start + w - 1, B));
    }
  }
  return 0;
}

// First block that a step of c tokens after n must store: older rows of the step are no longer
// visible at its end and live in one layer's scratch.
constexpr int64_t first_stored_block(Retention r, int64_t n, int64_t c, int64_t B) {
  return std::max(n / B, first_needed_block(r, n + c, B));
}

// Blocks that a step of c rows after row n takes on top of those held at n, when rows before
// `first_row` are no longer visible at the earliest end the step can have.
constexpr int64_t new_blocks_of_rows(int64_t first_row, int64_t n, int64_t c, int64_t B) {
  return ceil_div(n + c, B) - std::min(ceil_div(n + c, B), std::max(ceil_div(n, B), first_row / B));
}

// Blocks that a step of c tokens after n takes on top of those held at n.
constexpr int64_t step_new_blocks(Retention r, int64_t n, int64_t c, int64_t B) {
  return new_blocks_of_rows(first_visible(r, n + c), n, c, B);
}

// The same when only the first `min_accept` of the c tokens are certain to be accepted.
constexpr int64_t step_new_blocks(Retention r, int64_t n, int64_t c, int64_t min_accept,
                                  int64_t B) {
  return new_blocks_of_rows(first_visible(r, n + min_accept), n, c, B);
}

}  // namespace weir

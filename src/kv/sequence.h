#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "geometry/window.h"
#include "kv/block_table.h"
#include "kv/prefix_index.h"

namespace weir {

// Rows of a sequence and where they lie. Row == position, unless operations on a middle part
// shifted positions: then each row's position is listed.
struct Sequence {
  int64_t length = 0;              // committed rows
  std::vector<int64_t> positions;  // one per row, ascending (equal neighbours allowed); or empty
  int64_t exact_rows = 0;          // if inexact: rows at the front that a prefix would produce too
  bool is_inexact = false;
  bool is_evictable = false;
  uint64_t last_use = 0;
  std::vector<BlockTable> tables;  // per group

  // Of a named sequence, else null: the node of its last full block, or the root. While it is being
  // rebuilt, that of replay_end.
  PrefixNode* tail = nullptr;
  std::vector<int32_t> open_tokens;  // after the tail
  PrefixNode* latest = nullptr;      // the restart point that moves along with it
  bool keeps_latest = false;
  // Local rows from replay_begin on are being computed again until replay_end is reached.
  int64_t replay_begin = 0, replay_end = 0;

  bool is_named() const { return tail != nullptr; }
  bool is_replaying() const { return length < replay_end; }

  int64_t next_position() const {
    return is_inexact ? (positions.empty() ? 0 : positions.back() + 1) : length;
  }
  int64_t position_of(int64_t row) const {
    return is_inexact ? positions[static_cast<size_t>(row)] : row;
  }
  // First row whose position is at least `position`; rows yet to come count on from the last.
  int64_t row_from(int64_t position) const {
    if (!is_inexact) return position;
    if (position >= next_position()) return length + (position - next_position());
    return std::lower_bound(positions.begin(), positions.end(), position) - positions.begin();
  }
  // First row that the query reads that comes `ahead` rows after the next one.
  int64_t first_needed_row(Retention r, int64_t ahead = 0) const {
    return row_from(first_visible(r, next_position() + ahead));
  }
  // The same if only the first n rows were there.
  int64_t first_needed_row_at(Retention r, int64_t n) const {
    const int64_t next = n == 0 ? 0 : position_of(n - 1) + 1;
    return std::min(n, row_from(first_visible(r, next)));
  }
};

}  // namespace weir

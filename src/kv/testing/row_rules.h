#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"
#include "kv/testing/fingerprints.h"
#include "kv/testing/op_stream.h"

namespace weir {

// What a KV store must hold of one sequence: a list of rows.
struct ModelRow {
  Fingerprint content;
  bool is_changed = false;           // moved, or after a part that was changed
  std::array<bool, 3> is_held = {};  // per group
};

struct ModelSequence {
  SeqId id{};
  std::vector<ModelRow> rows;
  bool is_evictable = false;
  uint64_t last_use = 0;

  int64_t length() const { return static_cast<int64_t>(rows.size()); }
  int64_t next_position() const { return rows.empty() ? 0 : rows.back().content.position + 1; }
  const Fingerprint& print(int64_t row) const { return rows[static_cast<size_t>(row)].content; }
  // Rows whose positions are in [p0, p1); negative p1 means the end.
  std::pair<int64_t, int64_t> rows_in(int64_t p0, int64_t p1) const {
    int64_t row0 = 0;
    while (row0 < length() && print(row0).position < p0) ++row0;
    int64_t row1 = row0;
    while (row1 < length() && (p1 < 0 || print(row1).position < p1)) ++row1;
    return {row0, row1};
  }
};

// Which rows are read and kept, by the definition: it lists positions one by one and does no window
// arithmetic.
class RowRules {
 public:
  explicit RowRules(const StreamConfig& config) : config_(config) {}

  bool is_visible(size_t g, int64_t key, int64_t query) const {
    const Retention& r = config_.groups[g];
    switch (r.kind) {
      case LayerKind::global:
        return key <= query;
      case LayerKind::sliding:
        return key <= query && key > query - r.window;
      case LayerKind::chunked:
        return key <= query && key / r.window == query / r.window;
    }
    return false;
  }
  // First of the first n rows that the query after them reads; n if none.
  int64_t first_read(const ModelSequence& s, size_t g, int64_t n) const {
    const int64_t query = n == 0 ? 0 : s.print(n - 1).position + 1;
    int64_t row = 0;
    while (row < n && !is_visible(g, s.print(row).position, query)) ++row;
    return row;
  }
  int64_t first_held(const ModelSequence& s, size_t g) const {
    int64_t row = 0;
    while (row < s.length() && !s.rows[static_cast<size_t>(row)].is_held[g]) ++row;
    return row;
  }
  // Blocks wholly before what the next query reads go.
  void drop_unread(ModelSequence& s) const {
    for (size_t g = 0; g < config_.groups.size(); ++g) {
      const int64_t first_block = first_read(s, g, s.length()) / config_.block_tokens;
      for (int64_t row = 0; row < first_block * config_.block_tokens; ++row) {
        s.rows[static_cast<size_t>(row)].is_held[g] = false;
      }
    }
  }
  int64_t blocks_held(const ModelSequence& s, size_t g) const {
    const int64_t B = config_.block_tokens;
    int64_t blocks = 0;
    for (int64_t block = first_read(s, g, s.length()) / B; block * B < s.length(); ++block)
      ++blocks;
    return blocks;
  }
  bool can_cut(const ModelSequence& s, int64_t n) const {
    for (size_t g = 0; n > 0 && g < config_.groups.size(); ++g) {
      const int64_t read = first_read(s, g, n);
      if (read == n && n % config_.block_tokens == 0) continue;
      if (read < first_held(s, g)) return false;
    }
    return true;
  }

 private:
  const StreamConfig& config_;
};

}  // namespace weir

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "geometry/window.h"
#include "kv/kv_cache.h"
#include "kv/testing/fake_memory.h"
#include "kv/testing/fingerprints.h"

namespace weir {

constexpr Retention kGlobal{LayerKind::global, 0};
constexpr Retention sliding(int64_t window) { return {LayerKind::sliding, window}; }
constexpr Retention chunked(int64_t chunk) { return {LayerKind::chunked, chunk}; }

// A KvCache with its budget and memory, for tests. Rows hold fingerprints of prefixes made of the
// tokens 1, 2, 3 ..., so every sequence that was never rewound holds the same rows.
struct SmallStore {
  explicit SmallStore(KvLayout layout, int64_t limit = int64_t{1} << 19, int64_t extent = 4096)
      : budget({limit}) {
    auto made = KvCache::create(
        std::move(layout), budget, memory,
        {.address_space = {limit}, .max_context = 0, .extent = {extent}, .poison = true});
    WEIR_CHECK(made.ok());
    cache = std::move(*made);
  }
  SmallStore(int block_tokens, std::vector<Retention> retentions, int64_t limit = int64_t{1} << 19)
      : SmallStore(fingerprint_layout(block_tokens, retentions), limit) {}

  static Fingerprint print(int64_t row) {
    static std::vector<uint64_t> prefixes = {0};
    while (static_cast<int64_t>(prefixes.size()) <= row + 1) {
      prefixes.push_back(extend_hash(prefixes.back(), prefixes.size()));
    }
    return {prefixes[static_cast<size_t>(row + 1)], row};
  }

  // Writes an item's new rows.
  void write(const Step& step, size_t item, Scratch& scratch) {
    for (const KvGroup& g : cache->layout().groups) {
      const StepTable& table = step.table(item, static_cast<size_t>(g.id));
      for (int64_t row = table.n_past; row < table.n_past + table.n_new; ++row) {
        std::byte* block = scratch.block(g, table, row);
        WEIR_CHECK(block != nullptr);
        write_fingerprint(g, block, static_cast<int>(row % g.block_tokens), print(row));
      }
    }
  }

  Status append(std::vector<StepItem> items) {
    Result<Step> step = cache->plan_step(items);
    if (!step) return step.error();
    cache->check_invariants();
    Scratch scratch(cache->layout(), *step);
    for (size_t i = 0; i < items.size(); ++i) write(*step, i, scratch);
    step->commit();
    cache->check_invariants();
    return {};
  }
  Status append(SeqId seq, int64_t n) { return append({{.seq = seq, .n_tokens = n}}); }

  SeqId sequence_of(int64_t n, int64_t step = 1 << 20) {
    const SeqId seq = cache->create_sequence();
    for (int64_t done = 0; done < n; done += step) {
      WEIR_CHECK(append(seq, std::min(step, n - done)).ok());
    }
    return seq;
  }

  // Rows from the first one read next to the end, in every group.
  bool holds_its_window(SeqId seq) const {
    const int64_t n = cache->length(seq);
    for (const KvGroup& g : cache->layout().groups) {
      const StepTable table = cache->held_table(seq, static_cast<size_t>(g.id));
      for (int64_t row = first_visible(g.retention, n); row < n; ++row) {
        const int64_t index = (row - table.first_row) / g.block_tokens;
        if (row < table.first_row || index >= static_cast<int64_t>(table.blocks.size())) {
          return false;
        }
        if (!has_fingerprint(g, table.blocks[static_cast<size_t>(index)].memory,
                             static_cast<int>(row % g.block_tokens), print(row))) {
          return false;
        }
      }
    }
    return true;
  }

  // What the plan says: held_blocks for a sequence of n tokens.
  Bytes planned(int64_t n) const {
    Bytes sum;
    for (const KvGroup& g : cache->layout().groups) {
      sum += held_blocks(g.retention, n, g.block_tokens) * g.block_bytes;
    }
    return sum;
  }

  FakeMemory memory;
  Budget budget;
  std::unique_ptr<KvCache> cache;
};

}  // namespace weir

#include <map>
#include <vector>

#include "kv/kv_cache_impl.h"

namespace weir {

// Tables hold exactly the blocks from the window to the end, the last one alone open.
void KvCache::Impl::check_sequence(const Sequence& s) const {
  const int64_t B = block_tokens();
  const int64_t end = ceil_div(s.length, B);
  if (s.is_inexact) {
    WEIR_CHECK(static_cast<int64_t>(s.positions.size()) == s.length);
    WEIR_CHECK(s.exact_rows < s.length);
    WEIR_CHECK(std::is_sorted(s.positions.begin(), s.positions.end()));
    WEIR_CHECK(s.positions.front() >= 0);
  } else {
    WEIR_CHECK(s.positions.empty());
  }
  for (size_t g = 0; g < n_groups(); ++g) {
    const BlockTable& table = s.tables[g];
    const int64_t needed = s.first_needed_row(retention(g));
    WEIR_CHECK(table.end_block() == end);
    WEIR_CHECK(table.size() == blocks_of_rows(needed, s.length, B));
    WEIR_CHECK(needed >= s.length || needed >= table.first_row(B));
    if (!s.is_inexact) {
      WEIR_CHECK(table.size() == held_blocks(retention(g), s.length, B));
      WEIR_CHECK(table.size() <= max_held_blocks(retention(g), s.length, B));
    }
    for (int64_t i = table.first_block(); i < table.end_block(); ++i) {
      const bool is_full = (i + 1) * B <= s.length;
      WEIR_CHECK(pools[g]->is_sealed(table.at(i)) == is_full);
      WEIR_CHECK(!pools[g]->is_headroom(table.at(i)));
    }
  }
}

// Every reference is a table's or the step's.
void KvCache::Impl::check_references() const {
  for (size_t g = 0; g < n_groups(); ++g) {
    std::vector<uint32_t> references(static_cast<size_t>(pools[g]->end_slot()));
    const auto count = [&](uint32_t slot) {
      WEIR_CHECK(slot < references.size());
      ++references[slot];
    };
    for (const auto& [id, s] : sequences) {
      for (const uint32_t slot : s.tables[g].slots()) count(slot);
    }
    for (const StepItemState& item : step) {
      for (const uint32_t slot : item.groups[g].slots) {
        count(slot);
        WEIR_CHECK(pools[g]->is_headroom(slot) == layout.is_local(layout.groups[g]));
      }
    }
    for (uint32_t slot = 0; slot < references.size(); ++slot) {
      WEIR_CHECK(references[slot] == pools[g]->references(slot));
    }
  }
}

void KvCache::Impl::check_invariants() const {
  for (const auto& pool : pools) pool->check_invariants();
  for (const auto& [id, s] : sequences) check_sequence(s);
  check_references();

  // What cannot be wrong in one pool alone: the budget counts no byte twice and none too few.
  Bytes tags, headroom, free;
  for (int t = 0; t < kTagCount; ++t) tags += budget.used(static_cast<Tag>(t));
  for (const auto& pool : pools) {
    headroom += pool->headroom();
    free += pool->committed_free();
  }
  WEIR_CHECK(tags == budget.used());
  WEIR_CHECK(budget.used(Tag::step_headroom) >= headroom);
  WEIR_CHECK(budget.used(Tag::committed_free) >= free);
  WEIR_CHECK(!step.empty() || headroom.v == 0);

  // Evicting everything that may be evicted would free what the candidates are said to free.
  const std::vector<EvictionCandidate> all = candidates({});
  WEIR_CHECK(all.empty() || need_after_evicting(all, Counts(n_groups()))->v <= 0);
}

void KvCache::check_invariants() const { impl_->check_invariants(); }

}  // namespace weir

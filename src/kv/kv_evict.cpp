// What may give way, as units: an evictable sequence, the run of a restart point, the tail of an
// idle chain. Never an inner global block, never one block of a run.
#include <algorithm>
#include <utility>

#include "kv/eviction_policy.h"
#include "kv/kv_cache_impl.h"

namespace weir {

int64_t KvCache::Impl::unique_bytes(const Sequence& s) const {
  int64_t bytes = 0;
  for (size_t g = 0; g < n_groups(); ++g) {
    for (const uint32_t slot : s.tables[g].slots()) {
      if (pools[g]->references(slot) == 1) bytes += pools[g]->block_bytes().v;
    }
  }
  return bytes;
}

void KvCache::Impl::add_sequences(Evictable& all, std::span<const SeqId> keep) const {
  for (const auto& [id, s] : sequences) {
    if (!s.is_evictable || std::find(keep.begin(), keep.end(), id) != keep.end()) continue;
    EvictionCandidate unit;
    unit.seq = id;
    unit.tokens = unit.rebuild_tokens = s.length;
    unit.unique_bytes = unique_bytes(s);
    unit.last_use = s.last_use;
    unit.age = clock - s.last_use;
    all.units.push_back(unit);
    all.nodes.push_back(nullptr);
  }
}

void KvCache::Impl::add_tail(Evictable& all, PrefixNode& leaf,
                             const ReturnAges::Rates& rates) const {
  EvictionCandidate unit;
  unit.kind = EvictionCandidate::Kind::tail;
  unit.name_space = leaf.name_space;
  unit.tokens = leaf.end();
  const std::vector<PrefixNode*> tail = tail_of(leaf);
  for (const PrefixNode* node : tail) {
    for (size_t g = 0; g < n_groups(); ++g) {
      if (layout.is_local(layout.groups[g]) || node->blocks[g] == PrefixNode::kNoBlock) continue;
      if (pools[g]->references(node->blocks[g]) == 1)
        unit.unique_bytes += pools[g]->block_bytes().v;
    }
  }
  if (leaf.restart) unit.unique_bytes += run_unique(leaf).v;
  unit.rebuild_tokens = first_computed(leaf) - first_computed(*tail.back()->parent);
  unit.last_use = std::max(leaf.last_use, leaf.restart ? leaf.restart->last_use : 0);
  unit.age = clock - unit.last_use;
  unit.return_rate = rates(unit.age);
  unit.is_pinned = leaf.pins > 0;
  all.units.push_back(unit);
  all.nodes.push_back(&leaf);
}

void KvCache::Impl::add_restart(Evictable& all, PrefixNode& node,
                                const ReturnAges::Rates& rates) const {
  if (node.is_idle_leaf() || reads_nothing_local(node)) return;
  EvictionCandidate unit;
  unit.kind = EvictionCandidate::Kind::restart;
  unit.name_space = node.name_space;
  unit.tokens = node.end();
  unit.unique_bytes = run_unique(node).v;
  unit.rebuild_tokens =
      node.end() - std::max(restart_below(node), replay_start(layout, node.end()));
  unit.rebuild_tokens *= restart_weight(node.restart->kind);
  unit.last_use = node.restart->last_use;
  unit.age = clock - unit.last_use;
  // Who goes back does so at once or never, whatever the conversation does.
  unit.return_rate = rates.falling(unit.age);
  unit.is_active = node.live > 0;
  unit.is_pinned = node.pins > 0;
  all.units.push_back(unit);
  all.nodes.push_back(&node);
}

KvCache::Impl::Evictable KvCache::Impl::evictable(std::span<const SeqId> keep) const {
  Evictable all;
  add_sequences(all, keep);
  const ReturnAges::Rates rates = returns.rates(clock);
  for (PrefixNode* leaf : index.idle_leaves()) add_tail(all, *leaf, rates);
  for (PrefixNode* node : index.restarts()) add_restart(all, *node, rates);
  return all;
}

KvCache::Impl::Evictable KvCache::Impl::without_protected(
    Evictable all, const std::map<NamespaceId, Bytes>& growth) const {
  Evictable allowed;
  for (size_t i = 0; i < all.units.size(); ++i) {
    const EvictionCandidate& unit = all.units[i];
    if (unit.kind != EvictionCandidate::Kind::sequence && !growth.contains(unit.name_space)) {
      const Namespace& n = space(unit.name_space);
      if (n.bytes.v - unit.unique_bytes < n.floor.v) continue;
    }
    allowed.units.push_back(unit);
    allowed.nodes.push_back(all.nodes[i]);
  }
  return allowed;
}

void KvCache::Impl::evict(const EvictionCandidate& unit, PrefixNode* node) {
  if (node) copy_out(unit, *node);
  switch (unit.kind) {
    case EvictionCandidate::Kind::sequence:
      drop_all(at(unit.seq));
      sequences.erase(unit.seq);
      ++counters.evicted_sequences;
      break;
    case EvictionCandidate::Kind::restart:
      unmark(*node);
      trim_chain(node);
      ++counters.evicted_restarts;
      break;
    case EvictionCandidate::Kind::tail: {
      PrefixNode* const parent = node->parent;
      remove_leaf(*node, true);
      trim_chain(parent);
      ++counters.evicted_tails;
      break;
    }
  }
  tier.has_news = true;
  for (KvObserver* o : observers) o->on_evicted(unit);
}

bool KvCache::Impl::evict_one(const Evictable& from, int64_t bytes_missing) {
  CostAwareRecency standard;
  const int choice = (policy ? policy : static_cast<EvictionPolicy*>(&standard))
                         ->choose(from.units, bytes_missing);
  if (choice < 0) return false;
  const size_t chosen = static_cast<size_t>(choice);
  WEIR_CHECK(chosen < from.units.size());
  evict(from.units[chosen], from.nodes[chosen]);
  return true;
}

void KvCache::fit_to_budget() {
  WEIR_CHECK(impl_->step.empty());
  Budget& budget = impl_->budget;
  while (budget.used() > budget.limit()) {
    if (impl_->release_spares()) continue;
    const Impl::Evictable from = impl_->evictable({});
    if (from.units.empty()) return;
    if (!impl_->evict_one(from, (budget.used() - budget.limit()).v)) return;
  }
}

Bytes KvCache::evictable() const {
  Bytes sum;
  for (const auto& pool : impl_->pools) sum += pool->kept();
  return sum;
}

}  // namespace weir

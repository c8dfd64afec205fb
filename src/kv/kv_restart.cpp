// Restart points and pins: what holds the local blocks that no sequence reads any more.
#include <algorithm>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kv/kv_cache_impl.h"

namespace weir {

bool KvCache::Impl::has_run(const PrefixNode& node) const {
  return for_run(node, [](size_t, uint32_t) {});
}

bool KvCache::Impl::reads_nothing_local(const PrefixNode& node) const {
  for (size_t g = 0; g < n_groups(); ++g) {
    if (!layout.is_local(layout.groups[g])) continue;
    if (restart_blocks(retention(g), node.end(), block_tokens()) > 0) return false;
  }
  return true;
}

bool KvCache::Impl::mark(PrefixNode& node, RestartKind kind) {
  if (node.is_root() || !has_run(node)) return false;
  if (node.restart) {
    // `latest` moves on and takes its point along, so any other reason to keep it goes first.
    const RestartKind before = node.restart->kind;
    const bool is_more =
        before == RestartKind::latest ||
        (kind != RestartKind::latest && restart_weight(kind) > restart_weight(before));
    index.set_restart(node, {is_more ? kind : node.restart->kind, clock});
    return true;
  }
  for_run(node, [&](size_t g, uint32_t slot) { pools[g]->keep(slot); });
  index.set_restart(node, {kind, clock});
  tier.has_news = true;
  return true;
}

void KvCache::Impl::unmark(PrefixNode& node) {
  WEIR_CHECK(node.restart.has_value());
  // Freeing a block takes its name out of the run, so the run is listed first.
  std::vector<std::pair<size_t, uint32_t>> run;
  WEIR_CHECK(for_run(node, [&](size_t g, uint32_t slot) { run.emplace_back(g, slot); }));
  index.clear_restart(node);
  for (const auto& [g, slot] : run) unkeep(g, slot);
}

bool KvCache::mark_restart(SeqId seq, RestartKind kind) {
  Sequence& s = impl_->change(seq);
  if (!s.is_named() || s.is_replaying() || s.length % impl_->block_tokens() != 0) return false;
  if (!impl_->mark(*s.tail, kind)) return false;
  impl_->thin(*s.tail);
  return true;
}

void KvCache::keep_latest(SeqId seq, bool keep) {
  Sequence& s = impl_->at(seq);
  WEIR_CHECK(s.is_named());
  s.keeps_latest = keep;
}

// After blocks filled: the point that moves along is set at the last of them.
void KvCache::Impl::move_latest(Sequence& s) {
  if (!s.keeps_latest || s.is_replaying() || s.tail->is_root() || s.latest == s.tail) return;
  if (!mark(*s.tail, RestartKind::latest)) return;
  PrefixNode* const before = std::exchange(s.latest, s.tail);
  if (before && before->restart && before->restart->kind == RestartKind::latest &&
      before->pins == 0) {
    unmark(*before);
  }
}

Bytes KvCache::Impl::run_unique(const PrefixNode& node) const {
  Bytes unique;
  for_run(node, [&](size_t g, uint32_t slot) {
    if (pools[g]->references(slot) == 1) unique += pools[g]->block_bytes();
  });
  return unique;
}

Bytes KvCache::Impl::freed_with(std::span<const PrefixNode* const> nodes) const {
  std::map<std::pair<size_t, uint32_t>, uint32_t> going;  // references of a block
  for (const PrefixNode* node : nodes) {
    for (size_t g = 0; g < n_groups(); ++g) {
      if (layout.is_local(layout.groups[g]) || node->blocks[g] == PrefixNode::kNoBlock) continue;
      ++going[{g, node->blocks[g]}];
    }
    if (node->restart) for_run(*node, [&](size_t g, uint32_t slot) { ++going[{g, slot}]; });
  }
  Bytes freed;
  for (const auto& [block, n] : going) {
    const BlockPool& pool = *pools[block.first];
    if (pool.references(block.second) == n) freed += pool.block_bytes();
  }
  return freed;
}

void KvCache::Impl::thin(PrefixNode& tail) {
  std::vector<PrefixNode*> points;
  for (PrefixNode* node = &tail; !node->is_root(); node = node->parent) {
    if (node->restart) points.push_back(node);
  }
  std::reverse(points.begin(), points.end());
  while (static_cast<int64_t>(points.size()) > restart_limit) {
    std::vector<RestartSummary> chain;
    for (const PrefixNode* p : points) {
      chain.push_back({.tokens = p->end(),
                       .weight = restart_weight(p->restart->kind) * std::max(1u, p->n_children),
                       .unique_bytes = run_unique(*p).v,
                       .healing_start = replay_start(layout, p->end()),
                       .is_fixed = p->pins > 0});
    }
    const std::optional<size_t> gone = point_to_drop(chain, rewind_bound);
    if (!gone) return;
    unmark(*points[*gone]);
    points.erase(points.begin() + static_cast<ptrdiff_t>(*gone));
    ++counters.thinned_restarts;
  }
}

void KvCache::set_restart_limit(int64_t points) { impl_->restart_limit = points; }
void KvCache::set_rewind_bound(int64_t tokens) { impl_->rewind_bound = tokens; }

// --- pins ---

// Blocks on the paths of all pins and of one more, and of the restart points at their ends.
Bytes KvCache::Impl::pinned_bytes(PrefixNode& added) const {
  std::vector<PrefixNode*> ends = {&added};
  for (const auto& [id, node] : pins) ends.push_back(node);
  Bytes sum;
  std::unordered_set<const PrefixNode*> seen;
  std::vector<std::unordered_set<uint32_t>> local(n_groups());
  for (PrefixNode* end : ends) {
    for (const PrefixNode* node = end; !node->is_root() && seen.insert(node).second;
         node = node->parent) {
      for (size_t g = 0; g < n_groups(); ++g) {
        if (!layout.is_local(layout.groups[g])) sum += pools[g]->block_bytes();
      }
    }
    if (!end->restart) continue;
    for_run(*end, [&](size_t g, uint32_t slot) {
      if (local[g].insert(slot).second) sum += pools[g]->block_bytes();
    });
  }
  return sum;
}

Result<PinId> KvCache::pin(NamespaceId id, std::span<const int32_t> tokens) {
  PrefixNode& node = impl_->index.find(*impl_->space(id).root, tokens);
  if (node.is_root()) return Status(Code::not_found, "nothing of this is in the KV store");
  const Bytes pinned = impl_->pinned_bytes(node);
  const Bytes share{
      static_cast<int64_t>(static_cast<double>(impl_->budget.limit().v) * impl_->pin_share)};
  if (pinned > share) {
    return Status(Code::over_budget, "pins would take " + format_bytes(pinned) + " and may take " +
                                         format_bytes(share) + " of the KV budget's " +
                                         format_bytes(impl_->budget.limit()) +
                                         "; unpin others or raise the budget");
  }
  const PinId pin{impl_->next_pin++};
  impl_->pins[pin] = &node;
  ++node.pins;
  return pin;
}

void KvCache::unpin(PinId pin) {
  const auto found = impl_->pins.find(pin);
  if (found == impl_->pins.end()) return;
  PrefixNode* const node = found->second;
  impl_->pins.erase(found);
  --node->pins;
  impl_->trim_chain(node);  // the pin may have been all it was kept for
}

bool KvCache::is_pinned(PinId pin) const { return impl_->pins.contains(pin); }
void KvCache::set_pin_share(double share) { impl_->pin_share = share; }

}  // namespace weir

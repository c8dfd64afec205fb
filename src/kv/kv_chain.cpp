// Chains of the prefix index: what of them is worth keeping, and what goes together.
#include <algorithm>
#include <utility>
#include <vector>

#include "kv/kv_cache_impl.h"

namespace weir {

int64_t KvCache::Impl::restart_below(const PrefixNode& node) const {
  for (const PrefixNode* n = node.parent; !n->is_root(); n = n->parent) {
    if (is_restart(*n)) return n->end();
  }
  return 0;
}

int64_t KvCache::Impl::first_computed(const PrefixNode& node) const {
  if (node.is_root()) return 0;
  if (is_restart(node)) return node.end();
  return std::max(restart_below(node), replay_start(layout, node.end()));
}

bool KvCache::Impl::is_useful(const PrefixNode& node) const {
  if (is_restart(node) || node.pins > 0) return true;
  const int64_t healing = replay_start(layout, node.end());
  return healing > 0 && healing > restart_below(node);
}

void KvCache::Impl::remove_leaf(PrefixNode& leaf, bool remember) {
  if (leaf.restart) unmark(leaf);
  for (size_t g = 0; g < n_groups(); ++g) {
    const uint32_t slot = leaf.blocks[g];
    if (slot == PrefixNode::kNoBlock) continue;
    unname(g, slot);
    if (!layout.is_local(layout.groups[g])) unkeep(g, slot);
  }
  if (leaf.writing != 0) {
    for (auto& [ticket, write] : tier.writes) {
      if (write.node == &leaf) write.node = nullptr;
    }
  }
  if (leaf.pins > 0) std::erase_if(pins, [&](const auto& pin) { return pin.second == &leaf; });
  leaf.pins = 0;
  if (remember) ghosts.remember(leaf.path_hash, leaf.last_use);
  index.remove(leaf);
  metadata.split(index.node_bytes());  // given back
}

void KvCache::Impl::trim_chain(PrefixNode* leaf) {
  while (leaf->is_idle_leaf() && !is_useful(*leaf)) {
    PrefixNode* const parent = leaf->parent;
    remove_leaf(*leaf, true);
    leaf = parent;
  }
}

std::vector<PrefixNode*> KvCache::Impl::tail_of(PrefixNode& leaf) const {
  std::vector<PrefixNode*> tail = {&leaf};
  for (PrefixNode* node = leaf.parent;
       !node->is_root() && node->live == 0 && node->n_children == 1 && !is_useful(*node);
       node = node->parent) {
    tail.push_back(node);
  }
  return tail;
}

// Idle nodes whose end is after token `from`, from a leaf up. Returns where it stopped.
PrefixNode* KvCache::Impl::drop_upwards(PrefixNode* node, int64_t from) {
  while (node->is_idle_leaf() && node->end() > from) {
    PrefixNode* const parent = node->parent;
    remove_leaf(*node, false);
    node = parent;
  }
  return node;
}

Bytes KvCache::drop(NamespaceId id, std::span<const int32_t> tokens, int64_t from) {
  WEIR_CHECK(impl_->step.empty());
  Impl& impl = *impl_;
  const Bytes before = impl.space(id).bytes;
  PrefixNode& root = *impl.space(id).root;
  PrefixNode* node = impl.drop_upwards(&impl.index.find(root, tokens), from);
  // What was in front of the dropped part may be worth nothing without it.
  const int64_t left = node->is_root() ? 0 : node->end();
  impl.erase_records(id, tokens, std::max(from, left));
  impl.trim_chain(node);
  return before - impl.space(id).bytes;
}

std::vector<const PrefixNode*> KvCache::Impl::dropped(const PrefixNode& end, int64_t from) const {
  std::vector<const PrefixNode*> gone;
  for (const PrefixNode* node = &end; !node->is_root() && node->live == 0; node = node->parent) {
    if (node->n_children > (gone.empty() ? 0u : 1u)) break;
    if (node->end() <= from && is_useful(*node)) break;
    gone.push_back(node);
  }
  return gone;
}

ChainBytes KvCache::bytes_of(NamespaceId id, std::span<const int32_t> tokens, int64_t from) const {
  const Impl& impl = *impl_;
  ChainBytes chain;
  const PrefixNode* node = &impl.index.find(*impl.space(id).root, tokens);
  chain.tokens = node->is_root() ? 0 : node->end();
  chain.unique = impl.freed_with(impl.dropped(*node, from));
  Bytes all;
  for (; !node->is_root(); node = node->parent) {
    for (size_t g = 0; g < impl.n_groups(); ++g) {
      if (node->blocks[g] != PrefixNode::kNoBlock) all += impl.pools[g]->block_bytes();
    }
    if (!node->restart) continue;
    chain.points.push_back({node->end(), node->restart->kind, impl.run_unique(*node)});
  }
  chain.shared = all - chain.unique;
  std::reverse(chain.points.begin(), chain.points.end());
  return chain;
}

}  // namespace weir

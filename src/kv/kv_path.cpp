// The path of a named sequence through the prefix index: it grows as blocks fill, is cut by
// rewinds, and stays behind, idle, when the sequence leaves.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kv/kv_cache_impl.h"

namespace weir {

void KvCache::Impl::enter_path(Sequence& s, PrefixNode& tail) {
  s.tail = &tail;
  for (PrefixNode* node = &tail; !node->is_root(); node = node->parent) index.add_live(*node);
}

// Nodes past the first n tokens. Their tokens in a block that is cut become open ones.
void KvCache::Impl::cut_path(Sequence& s, int64_t n) {
  if (!s.is_named()) return;
  const int64_t B = block_tokens();
  PrefixNode* const old = s.tail;
  while (s.tail->index >= n / B) {
    PrefixNode& node = *s.tail;
    s.tail = node.parent;
    s.open_tokens = node.tokens;
    index.drop_live(node);
  }
  s.open_tokens.resize(static_cast<size_t>(n % B));
  if (s.latest && s.latest->index > s.tail->index) s.latest = nullptr;
  if (old != s.tail) {
    tier.has_news = true;
    old->last_use = clock;
    trim_chain(old);
  }
}

void KvCache::Impl::leave_path(Sequence& s) {
  s.replay_begin = s.replay_end = 0;
  s.latest = nullptr;
  cut_path(s, 0);
}

void KvCache::Impl::forget_name(Sequence& s) {
  if (!s.is_named()) return;
  const NamespaceId id = s.tail->name_space;
  leave_path(s);
  s.tail = nullptr;
  s.keeps_latest = false;
  // What nobody will find is nobody's.
  for (size_t g = 0; g < n_groups(); ++g) {
    for (const uint32_t slot : s.tables[g].slots()) {
      if (owners[g].size() <= slot) continue;  // a copy that never had an owner
      if (owners[g][slot].node || owners[g][slot].name_space != id) continue;
      forget_owner(g, slot);
    }
  }
  forget_namespace_if_unused(id);
}

// Gives full blocks their names: those at the node's index that the table holds. One that is known
// already replaces the sequence's own.
void KvCache::Impl::name_blocks(Sequence& s, PrefixNode& node, bool local_only) {
  for (size_t g = 0; g < n_groups(); ++g) {
    if (local_only && !layout.is_local(layout.groups[g])) continue;
    BlockTable& table = s.tables[g];
    if (!table.holds(node.index)) continue;
    BlockPool& pool = *pools[g];
    const uint32_t own_slot = table.at(node.index), known = node.blocks[g];
    if (known == own_slot) continue;
    if (known == PrefixNode::kNoBlock) {
      name(g, own_slot, node);
      continue;
    }
    ++counters.duplicates;
    if (options.compare_duplicates && std::memcmp(pool.memory(own_slot), pool.memory(known),
                                                  static_cast<size_t>(pool.block_bytes().v)) != 0) {
      ++counters.duplicates_differ;
    }
    pool.share(known);
    table.replace(node.index, known);
    drop(g, own_slot);
  }
}

void KvCache::Impl::extend_path(Sequence& s, std::span<const int32_t> tokens) {
  const size_t B = static_cast<size_t>(block_tokens());
  s.open_tokens.insert(s.open_tokens.end(), tokens.begin(), tokens.end());
  size_t used = 0;
  for (; s.open_tokens.size() - used >= B; used += B) {
    const std::span<const int32_t> block(s.open_tokens.data() + used, B);
    PrefixNode* node = index.child(*s.tail, block);
    if (!node) {
      node = &index.add(*s.tail, block);
      metadata.merge(step_metadata.split(index.node_bytes()));
    }
    index.add_live(*node);
    s.tail = node;
    name_blocks(s, *node, false);
  }
  s.open_tokens.erase(s.open_tokens.begin(), s.open_tokens.begin() + static_cast<ptrdiff_t>(used));
}

// The tokens of a rebuilding step are those of the path, or local rows of one prefix would get the
// name of another.
void KvCache::Impl::check_replayed(const Sequence& s, std::span<const int32_t> tokens) const {
  const int64_t B = block_tokens(), end = s.length + static_cast<int64_t>(tokens.size());
  for (const PrefixNode* node = s.tail; !node->is_root() && node->end() > s.length;
       node = node->parent) {
    for (int64_t t = std::max(node->index * B, s.length); t < std::min(node->end(), end); ++t) {
      WEIR_CHECK(node->tokens[static_cast<size_t>(t % B)] ==
                 tokens[static_cast<size_t>(t - s.length)]);
    }
  }
}

// After a step of a sequence that was being rebuilt. Only the blocks that a restart here needs are
// right in every layer; the table holds exactly them.
void KvCache::Impl::replayed(Sequence& s, std::span<const int32_t> tokens) {
  counters.healed_tokens += static_cast<int64_t>(tokens.size());
  if (s.is_replaying()) return;
  for (PrefixNode* node = s.tail; !node->is_root(); node = node->parent) {
    bool is_held = false;
    for (size_t g = 0; g < n_groups(); ++g) {
      is_held = is_held || (layout.is_local(layout.groups[g]) && s.tables[g].holds(node->index));
    }
    if (!is_held) break;
    name_blocks(s, *node, true);
  }
  s.replay_begin = s.replay_end = 0;
}

// --- namespaces ---

NamespaceId KvCache::open_namespace() {
  const NamespaceId id{impl_->next_namespace++};
  impl_->namespaces[id].root = &impl_->index.open_root(id);
  return id;
}

void KvCache::close_namespace(NamespaceId id) {
  WEIR_CHECK(impl_->step.empty());
  Impl& impl = *impl_;
  impl.space(id).is_closed = true;
  for (const auto& [load_id, load] : impl.tier.loads) {
    WEIR_CHECK(load.name_space != id || load.is_cancelled);
  }
  const auto is_of = [&](const PrefixNode* node) { return node->name_space == id; };
  std::vector<PinId> pinned;
  for (const auto& [pin, node] : impl.pins) {
    if (is_of(node)) pinned.push_back(pin);
  }
  for (const PinId pin : pinned) unpin(pin);
  const NodeSet marked = impl.index.restarts();
  for (PrefixNode* node : marked) {
    if (is_of(node)) impl.unmark(*node);
  }
  const NodeSet leaves = impl.index.idle_leaves();
  for (PrefixNode* leaf : leaves) {
    if (is_of(leaf)) impl.drop_upwards(leaf, 0);
  }
  impl.forget_namespace_if_unused(id);
}

void KvCache::Impl::forget_namespace_if_unused(NamespaceId id) {
  const Namespace& n = space(id);
  if (!n.is_closed || n.root->n_children > 0 || n.bytes.v > 0) return;
  for (const auto& [seq, s] : sequences) {
    if (s.tail && s.tail->name_space == id) return;
  }
  index.close_root(*n.root);
  namespaces.erase(id);
}

void KvCache::set_quota(NamespaceId id, Bytes floor, Bytes ceiling) {
  Impl::Namespace& n = impl_->space(id);
  n.floor = floor;
  n.ceiling = ceiling;
}

Bytes KvCache::bytes_of(NamespaceId id) const { return impl_->space(id).bytes; }

}  // namespace weir

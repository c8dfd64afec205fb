// Blocks on their way to the tier: which, when, and what becomes of them.
#include <algorithm>
#include <utility>

#include "kv/eviction_policy.h"
#include "kv/kv_cache_impl.h"

namespace weir {

// --- which blocks
// ---------------------------------------------------------------------------------

void KvCache::Impl::add_run(std::vector<NodeBlock>& blocks, const PrefixNode& node) const {
  for_run(node, [&](size_t g, uint32_t slot) { blocks.emplace_back(owners[g][slot].node, g); });
}

// The global blocks of nodes from `last` up to `first`, in the order of their tokens.
std::vector<KvCache::Impl::NodeBlock> KvCache::Impl::global_blocks(PrefixNode& last,
                                                                   int64_t first) const {
  std::vector<NodeBlock> blocks;
  for (PrefixNode* node = &last; node->index >= first; node = node->parent) {
    for (size_t g = 0; g < n_groups(); ++g) {
      if (!layout.is_local(layout.groups[g])) blocks.emplace_back(node, g);
    }
  }
  std::reverse(blocks.begin(), blocks.end());
  return blocks;
}

// What goes with a unit: the global blocks of a tail, the run of a restart point.
std::vector<KvCache::Impl::NodeBlock> KvCache::Impl::blocks_of(const EvictionCandidate& unit,
                                                               PrefixNode& node) const {
  std::vector<NodeBlock> blocks;
  if (unit.kind == EvictionCandidate::Kind::tail) {
    blocks = global_blocks(node, tail_of(node).back()->index);
  }
  if (node.restart) add_run(blocks, node);
  return blocks;
}

void KvCache::Impl::drop_stored(std::vector<NodeBlock>& blocks) const {
  std::erase_if(blocks, [](const NodeBlock& b) { return (b.first->stored & bit(b.second)) != 0; });
}

// Whether who returns to the unit's end would rather read it than compute it.
bool KvCache::Impl::is_worth_storing(const EvictionCandidate& unit, const PrefixNode& node,
                                     const std::vector<NodeBlock>& blocks) const {
  Bytes bytes;
  for (const auto& [n, g] : blocks) bytes += pools[g]->block_bytes();
  int64_t tokens = unit.rebuild_tokens;
  if (unit.kind == EvictionCandidate::Kind::restart) tokens /= restart_weight(node.restart->kind);
  return tier.is_worth(tokens, bytes);
}

// The names of all blocks up to the node's.
std::vector<Digest> KvCache::Impl::names_of(const PrefixNode& node) const {
  std::vector<const PrefixNode*> path;
  for (const PrefixNode* n = &node; !n->is_root(); n = n->parent) path.push_back(n);
  std::vector<Digest> names = {*space(node.name_space).tier_root};
  for (auto n = path.rbegin(); n != path.rend(); ++n) {
    names.push_back(name_after(names.back(), (*n)->tokens));
  }
  return names;  // names[i + 1] is that of the block at index i
}

RecordKey KvCache::Impl::key_of(const NodeBlock& block, const std::vector<Digest>& names) const {
  return {names[static_cast<size_t>(block.first->index + 1)], static_cast<uint8_t>(block.second)};
}

std::vector<std::byte> KvCache::Impl::header_of(const NodeBlock& block,
                                                const std::vector<Digest>& names) const {
  const auto& [node, g] = block;
  return write_record_header({.group = static_cast<uint32_t>(g),
                              .index = node->index,
                              .block_bytes = static_cast<uint64_t>(pools[g]->block_bytes().v),
                              .parent = names[static_cast<size_t>(node->index)],
                              .tokens = node->tokens},
                             pools[g]->contents(node->blocks[g]));
}

// --- writing
// --------------------------------------------------------------------------------------

Bytes KvCache::Impl::being_written() const {
  Bytes sum;
  for (const auto& [ticket, write] : tier.writes) sum += pools[write.group]->block_bytes();
  return sum;
}

bool KvCache::Impl::write(const NodeBlock& block, const std::vector<Digest>& names) {
  const auto& [node, g] = block;
  if (std::ssize(tier.writes) >= tier.options.max_writes) return false;
  TierSide::Write write{
      .group = g, .slot = node->blocks[g], .node = node, .header = header_of(block, names)};
  const TierTicket ticket = tier.ticket();
  const auto place = tier.writes.emplace(ticket, std::move(write)).first;
  const RecordBytes record{place->second.header, pools[g]->contents(node->blocks[g])};
  if (!tier.tier()->put(ticket, key_of(block, names), record)) {
    tier.writes.erase(place);
    return false;
  }
  pools[g]->lease(node->blocks[g]);
  node->writing |= bit(g);
  return true;
}

bool KvCache::Impl::write_all(const std::vector<NodeBlock>& blocks, const PrefixNode& deepest,
                              Bytes most) {
  if (blocks.empty()) return true;
  const std::vector<Digest> names = names_of(deepest);
  return std::all_of(blocks.begin(), blocks.end(), [&](const NodeBlock& block) {
    const bool has_begun = (block.first->writing & bit(block.second)) != 0;
    if (has_begun) return true;
    return being_written() + pools[block.second]->block_bytes() <= most && write(block, names);
  });
}

void KvCache::Impl::written(TierSide::Write write, bool is_ok) {
  if (write.node) {
    write.node->writing &= ~bit(write.group);
    if (is_ok) write.node->stored |= bit(write.group);
  }
  if (is_ok) {
    ++tier.counters.written_records;
    tier.counters.written += Bytes{static_cast<int64_t>(write.header.size())};
    tier.counters.written += pools[write.group]->block_bytes();
  } else {
    ++tier.counters.failed_writes;
  }
  tier.has_news = true;
  const NamespaceId payer = owners[write.group][write.slot].name_space;
  unlease(write.group, write.slot);
  if (payer != BlockOwner::kNobody) forget_namespace_if_unused(payer);
}

void KvCache::write_behind(Bytes most) {
  Impl& impl = *impl_;
  WEIR_CHECK(impl.step.empty());
  if (!impl.tier.tier() || most.v <= 0 || !std::exchange(impl.tier.has_news, false)) return;
  CostAwareRecency standard;
  EvictionPolicy& order = impl.policy ? *impl.policy : standard;
  Impl::Evictable left = impl.evictable({});
  Bytes ready;
  while (!left.units.empty() && ready < impl.tier.options.ready) {
    const int choice = order.choose(left.units, 1);
    if (choice < 0) break;
    const EvictionCandidate unit = left.units[static_cast<size_t>(choice)];
    PrefixNode* const node = left.nodes[static_cast<size_t>(choice)];
    left.units.erase(left.units.begin() + choice);
    left.nodes.erase(left.nodes.begin() + choice);
    if (!node || !impl.uses_tier(unit.name_space)) continue;
    const std::vector<Impl::NodeBlock> own = impl.blocks_of(unit, *node);
    // Who comes back needs the way there, too.
    std::vector<Impl::NodeBlock> blocks = impl.global_blocks(*node, 0);
    blocks.insert(blocks.end(), own.begin(), own.end());
    impl.drop_stored(blocks);
    ready += {unit.unique_bytes};
    if (blocks.empty()) continue;
    if (!impl.is_worth_storing(unit, *node, own)) {
      ++impl.tier.counters.not_worth;
      continue;
    }
    if (!impl.write_all(blocks, *node, most)) return;  // the rest when one of them is done
  }
}

bool KvCache::demote(NamespaceId id, std::span<const int32_t> tokens) {
  Impl& impl = *impl_;
  WEIR_CHECK(impl.step.empty());
  if (!impl.uses_tier(id)) return true;
  PrefixNode& end = impl.index.find(*impl.space(id).root, tokens);
  std::vector<Impl::NodeBlock> blocks = impl.global_blocks(end, 0);
  for (PrefixNode* node = &end; !node->is_root(); node = node->parent) {
    if (node->restart) impl.add_run(blocks, *node);
  }
  impl.drop_stored(blocks);
  impl.write_all(blocks, end, impl.budget.limit());
  return blocks.empty();
}

// A unit goes now, and there is no time: what a write buffer takes is not lost.
void KvCache::Impl::copy_out(const EvictionCandidate& unit, PrefixNode& node) {
  if (!uses_tier(unit.name_space)) return;
  std::vector<NodeBlock> blocks = blocks_of(unit, node);
  const bool is_worth = is_worth_storing(unit, node, blocks);
  drop_stored(blocks);
  std::erase_if(blocks, [](const NodeBlock& b) { return (b.first->writing & bit(b.second)) != 0; });
  if (blocks.empty() || !is_worth) return;
  const std::vector<Digest> names = names_of(node);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& [n, g] = blocks[i];
    const std::vector<std::byte> header = header_of(blocks[i], names);
    const RecordBytes record{header, pools[g]->contents(n->blocks[g])};
    if (!tier.tier()->put_copy(key_of(blocks[i], names), record)) {
      tier.counters.evicted_unwritten += blocks.size() - i;
      return;
    }
    n->stored |= bit(g);
    ++tier.counters.written_records;
    tier.counters.written += Bytes{static_cast<int64_t>(record.size())};
  }
}

// Of the full blocks of `tokens` that end after `from`. Nobody waits for it.
void KvCache::Impl::erase_records(NamespaceId id, std::span<const int32_t> tokens, int64_t from) {
  if (!uses_tier(id)) return;
  const std::vector<Digest> names =
      chain_names(*space(id).tier_root, tokens, layout.format.block_tokens);
  for (size_t i = static_cast<size_t>(from / block_tokens()); i < names.size(); ++i) {
    for (size_t g = 0; g < n_groups(); ++g) {
      tier.tier()->erase(tier.ticket(), {names[i], static_cast<uint8_t>(g)});
    }
  }
}

}  // namespace weir

#include <map>
#include <vector>

#include "kv/kv_cache_impl.h"

namespace weir {

// Tables hold exactly the blocks from the window to the end, the last one alone open.
void KvCache::Impl::check_sequence(const Sequence& s) const {
  const int64_t B = block_tokens();
  if (s.is_inexact) {
    WEIR_CHECK(static_cast<int64_t>(s.positions.size()) == s.length);
    WEIR_CHECK(s.exact_rows < s.length);
    WEIR_CHECK(std::is_sorted(s.positions.begin(), s.positions.end()));
    WEIR_CHECK(s.positions.front() >= 0);
  } else {
    WEIR_CHECK(s.positions.empty());
  }
  check_path(s);
  for (size_t g = 0; g < n_groups(); ++g) {
    const BlockTable& table = s.tables[g];
    const int64_t needed = std::max(s.replay_begin, s.first_needed_row(retention(g)));
    WEIR_CHECK(table.end_block() == end_block(s, g));
    if (reads_stored_rows(s, g)) {
      WEIR_CHECK(table.size() == s.replay_end / B);
    } else {
      WEIR_CHECK(table.size() == blocks_of_rows(needed, s.length, B));
    }
    WEIR_CHECK(needed >= s.length || needed >= table.first_row(B));
    if (!s.is_inexact && !s.is_replaying()) {
      WEIR_CHECK(table.size() == held_blocks(retention(g), s.length, B));
      WEIR_CHECK(table.size() <= max_held_blocks(retention(g), s.length, B));
    }
    for (int64_t i = table.first_block(); i < table.end_block(); ++i) {
      const bool is_full = (i + 1) * B <= s.length || reads_stored_rows(s, g);
      WEIR_CHECK(pools[g]->is_sealed(table.at(i)) == is_full);
      WEIR_CHECK(!pools[g]->is_headroom(table.at(i)));
    }
  }
}

// A named sequence's path is that of its tokens, and its tables hold the path's blocks.
void KvCache::Impl::check_path(const Sequence& s) const {
  if (!s.is_named()) return;
  const int64_t B = block_tokens();
  WEIR_CHECK(!s.is_inexact && !s.is_evictable);
  WEIR_CHECK(s.tail->index + 1 == (s.is_replaying() ? s.replay_end : s.length) / B);
  if (!s.is_replaying()) {
    WEIR_CHECK(s.replay_end == 0 && s.replay_begin == 0);
    WEIR_CHECK(static_cast<int64_t>(s.open_tokens.size()) == s.length % B);
  }
  for (const PrefixNode* node = s.tail; !node->is_root(); node = node->parent) {
    for (size_t g = 0; g < n_groups(); ++g) {
      if (!s.tables[g].holds(node->index)) continue;
      if (s.is_replaying() && layout.is_local(layout.groups[g])) {
        WEIR_CHECK(owners[g][s.tables[g].at(node->index)].node == nullptr);
      } else if (!layout.is_local(layout.groups[g])) {
        WEIR_CHECK(s.tables[g].at(node->index) == node->blocks[g]);
      }
    }
  }
}

// Nodes have all their global blocks, restart points their whole run, idle leaves a use; names go
// both ways.
void KvCache::Impl::check_index() const {
  index.check_invariants();
  std::map<const PrefixNode*, uint32_t> live, pinned;
  for (const auto& [id, s] : sequences) {
    for (const PrefixNode* n = s.tail; n && !n->is_root(); n = n->parent) ++live[n];
    WEIR_CHECK(!s.latest || (s.is_named() && s.latest->index <= s.tail->index));
  }
  for (const auto& [id, load] : tier.loads) {
    for (const PrefixNode* n = load.base; n && !n->is_root(); n = n->parent) ++live[n];
  }
  for (const auto& [id, node] : pins) ++pinned[node];
  for (const PrefixNode* node : index.all()) {
    WEIR_CHECK(live[node] == node->live && pinned[node] == node->pins);
    WEIR_CHECK(!node->restart || has_run(*node));
    // A restart point that was marked since on its path may have made a healing start worthless:
    // such a leaf costs nothing to evict and goes first.
    WEIR_CHECK(!node->is_idle_leaf() || is_restart(*node) || node->pins > 0 ||
               replay_start(layout, node->end()) > 0);
    for (size_t g = 0; g < n_groups(); ++g) {
      const uint32_t slot = node->blocks[g];
      if (slot == PrefixNode::kNoBlock) {
        WEIR_CHECK(layout.is_local(layout.groups[g]));
      } else {
        WEIR_CHECK(pools[g]->is_sealed(slot) && owners[g][slot].node == node);
      }
    }
  }
  const Bytes ghost_bytes{ghosts.is_open() ? options.ghosts * int64_t{sizeof(uint64_t)} : 0};
  WEIR_CHECK(metadata.size() == index.n_nodes() * index.node_bytes() + ghost_bytes);
  WEIR_CHECK(!step.empty() || step_metadata.size().v == 0);
}

// Each namespace pays for its own blocks, and every name of a block is its node's.
void KvCache::Impl::check_namespaces() const {
  std::map<NamespaceId, Bytes> bytes;
  for (size_t g = 0; g < n_groups(); ++g) {
    for (size_t i = 0; i < owners[g].size(); ++i) {
      const BlockOwner& owner = owners[g][i];
      const uint32_t slot = static_cast<uint32_t>(i);
      const bool is_used =
          static_cast<int64_t>(i) < pools[g]->end_slot() && pools[g]->references(slot) > 0;
      WEIR_CHECK(is_used || (!owner.node && owner.name_space == BlockOwner::kNobody));
      if (owner.node) WEIR_CHECK(owner.node->blocks[g] == slot);
      if (owner.name_space != BlockOwner::kNobody) {
        bytes[owner.name_space] += pools[g]->block_bytes();
      }
    }
  }
  for (const auto& [id, n] : namespaces) WEIR_CHECK(bytes[id] == n.bytes);
  WEIR_CHECK(bytes.size() == namespaces.size());
}

// Every reference is a table's, the step's, a node's, a restart point's or a lease.
std::vector<uint32_t> KvCache::Impl::count_keeps(size_t g) const {
  std::vector<uint32_t> keeps(static_cast<size_t>(pools[g]->end_slot()));
  for (const PrefixNode* node : index.all()) {
    if (!layout.is_local(layout.groups[g])) {
      ++keeps[node->blocks[g]];
    } else if (node->restart) {
      const PrefixNode* n = node;
      for (int64_t left = restart_blocks(retention(g), node->end(), block_tokens()); left > 0;
           --left, n = n->parent) {
        ++keeps[n->blocks[g]];
      }
    }
  }
  return keeps;
}

std::vector<uint32_t> KvCache::Impl::count_leases(size_t g) const {
  std::vector<uint32_t> leases(static_cast<size_t>(pools[g]->end_slot()));
  for (const auto& [ticket, write] : tier.writes) {
    if (write.group == g) ++leases[write.slot];
  }
  for (const auto& [id, load] : tier.loads) {
    for (const TierSide::Part& part : load.parts) {
      if (part.group == g && part.state != TierSide::Part::State::released) ++leases[part.slot];
    }
    if (layout.is_local(layout.groups[g])) continue;
    for (const PrefixNode* n = load.base; n && !n->is_root(); n = n->parent) ++leases[n->blocks[g]];
  }
  return leases;
}

void KvCache::Impl::check_references() const {
  for (size_t g = 0; g < n_groups(); ++g) {
    std::vector<uint32_t> references(static_cast<size_t>(pools[g]->end_slot()));
    const std::vector<uint32_t> kept = count_keeps(g);
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
    const std::vector<uint32_t> leased = count_leases(g);
    for (uint32_t slot = 0; slot < references.size(); ++slot) {
      WEIR_CHECK(kept[slot] == pools[g]->keeps(slot));
      WEIR_CHECK(leased[slot] == pools[g]->leases(slot));
      WEIR_CHECK(references[slot] + kept[slot] + leased[slot] == pools[g]->references(slot));
    }
  }
}

void KvCache::Impl::check_invariants() const {
  for (const auto& pool : pools) pool->check_invariants();
  for (const auto& [id, s] : sequences) check_sequence(s);
  check_index();
  check_namespaces();
  check_references();
  check_tier();

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
  const std::vector<EvictionCandidate> all = evictable({}).units;
  WEIR_CHECK(all.empty() || need_after_evicting(all, Counts(n_groups()))->v <= 0);
}

void KvCache::check_invariants() const { impl_->check_invariants(); }

}  // namespace weir

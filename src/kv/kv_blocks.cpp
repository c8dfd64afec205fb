// Who refers to a block, who pays for it, and which node names it.
#include <utility>

#include "kv/kv_cache_impl.h"

namespace weir {

KvCache::Impl::Namespace& KvCache::Impl::space(NamespaceId id) {
  const auto found = namespaces.find(id);
  WEIR_CHECK(found != namespaces.end());
  return found->second;
}

void KvCache::Impl::own(size_t g, uint32_t slot, NamespaceId id) {
  if (owners[g].size() <= slot) owners[g].resize(slot + size_t{1});
  WEIR_CHECK(owners[g][slot].name_space == BlockOwner::kNobody);
  owners[g][slot].name_space = id;
  if (id != BlockOwner::kNobody) space(id).bytes += pools[g]->block_bytes();
}

// Before the last reference goes.
void KvCache::Impl::forget_owner(size_t g, uint32_t slot) {
  if (owners[g].size() <= slot) return;
  BlockOwner& owner = owners[g][slot];
  if (owner.node) owner.node->blocks[g] = PrefixNode::kNoBlock;
  if (owner.name_space != BlockOwner::kNobody) {
    space(owner.name_space).bytes -= pools[g]->block_bytes();
  }
  owner = {};
}

void KvCache::Impl::lose_reference(size_t g, uint32_t slot) {
  const uint32_t left = pools[g]->references(slot) - 1;
  if (left == 0) {
    forget_owner(g, slot);
  } else if (left == pools[g]->leases(slot)) {
    unname(g, slot);
  }
}

void KvCache::Impl::drop(size_t g, uint32_t slot) {
  lose_reference(g, slot);
  pools[g]->drop(slot);
}

void KvCache::Impl::unkeep(size_t g, uint32_t slot) {
  lose_reference(g, slot);
  pools[g]->unkeep(slot);
}

void KvCache::Impl::unlease(size_t g, uint32_t slot) {
  if (pools[g]->references(slot) == 1) forget_owner(g, slot);
  pools[g]->unlease(slot);
}

void KvCache::Impl::name(size_t g, uint32_t slot, PrefixNode& node) {
  BlockOwner& owner = owners[g][slot];
  WEIR_CHECK(!owner.node && owner.name_space == node.name_space);
  WEIR_CHECK(node.blocks[g] == PrefixNode::kNoBlock && pools[g]->is_sealed(slot));
  owner.node = &node;
  node.blocks[g] = slot;
  if (!layout.is_local(layout.groups[g])) pools[g]->keep(slot);
}

void KvCache::Impl::unname(size_t g, uint32_t slot) {
  PrefixNode* node =
      owners[g].size() > slot ? std::exchange(owners[g][slot].node, nullptr) : nullptr;
  if (node) node->blocks[g] = PrefixNode::kNoBlock;
}

void KvCache::Impl::reopen(size_t g, uint32_t slot) {
  unname(g, slot);
  pools[g]->reopen(slot);
}

}  // namespace weir

#include "kv/prefix_index.h"

#include <algorithm>

#include "base/check.h"

namespace weir {
namespace {

uint64_t mix(uint64_t h) {
  h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
  h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
  return h ^ (h >> 32);
}

// What the two sets, the hash map and the allocator add to a node.
constexpr int64_t kContainerBytes = 160;

}  // namespace

std::span<const GhostTable::Entry> GhostTable::set_of(uint64_t hash) const {
  const size_t ways = std::min<size_t>(8, entries_.size());
  if (ways == 0) return {};
  return std::span(entries_).subspan(hash % (entries_.size() / ways) * ways, ways);
}

const GhostTable::Entry* GhostTable::find(uint64_t hash) const {
  for (const Entry& e : set_of(hash)) {
    if (e.half_hash == half(hash)) return &e;
  }
  return nullptr;
}

void GhostTable::remember(uint64_t hash, uint64_t last_use) {
  if (!is_open()) return;
  const auto time = static_cast<uint32_t>(last_use);
  // What is as good as gone already: itself, nothing, or the oldest.
  const auto staleness = [&](const Entry& e) -> int64_t {
    if (e.half_hash == half(hash)) return INT64_MAX;
    if (e.half_hash == 0) return INT64_MAX - 1;
    return static_cast<int32_t>(time - e.last_use);  // the clock wraps
  };
  const auto set = set_of(hash);
  const auto oldest = std::max_element(set.begin(), set.end(), [&](const Entry& a, const Entry& b) {
    return staleness(a) < staleness(b);
  });
  entries_[static_cast<size_t>(&*oldest - entries_.data())] = {half(hash), time};
}

PrefixIndex::PrefixIndex(int block_tokens, size_t n_groups, uint64_t hash_mask)
    : block_tokens_(block_tokens), n_groups_(n_groups), hash_mask_(hash_mask) {}

Bytes PrefixIndex::node_bytes() const {
  return {static_cast<int64_t>(sizeof(PrefixNode)) + kContainerBytes +
          static_cast<int64_t>(sizeof(int32_t)) * block_tokens_ +
          static_cast<int64_t>(sizeof(uint32_t) * n_groups_)};
}

PrefixNode& PrefixIndex::open_root(NamespaceId name_space) {
  PrefixNode& root = *roots_.emplace_back(std::make_unique<PrefixNode>());
  root.name_space = name_space;
  root.id = next_id_++;
  root.path_hash = mix(static_cast<uint64_t>(name_space) + 1) & hash_mask_;
  return root;
}

void PrefixIndex::close_root(PrefixNode& root) {
  WEIR_CHECK(root.is_root() && root.n_children == 0);
  std::erase_if(roots_, [&](const auto& r) { return r.get() == &root; });
}

uint64_t PrefixIndex::hash_after(uint64_t path_hash, std::span<const int32_t> tokens) const {
  uint64_t h = path_hash;
  for (const int32_t token : tokens)
    h = mix(h + static_cast<uint32_t>(token) + 0x9e3779b97f4a7c15u);
  h &= hash_mask_;
  return h != 0 ? h : 1;
}

PrefixNode* PrefixIndex::child(const PrefixNode& parent, std::span<const int32_t> tokens) const {
  const auto [begin, end] = nodes_.equal_range(hash_after(parent.path_hash, tokens));
  for (auto it = begin; it != end; ++it) {
    PrefixNode& node = *it->second;
    if (node.parent == &parent && std::ranges::equal(node.tokens, tokens)) return &node;
  }
  return nullptr;
}

int64_t PrefixIndex::common_with_child(const PrefixNode& parent,
                                       std::span<const int32_t> tokens) const {
  const size_t n = std::min(tokens.size(), static_cast<size_t>(block_tokens_));
  int64_t most = 0;
  for (const PrefixNode* child = parent.first_child; child; child = child->next) {
    const auto end = tokens.begin() + static_cast<ptrdiff_t>(n);
    const auto differs = std::mismatch(tokens.begin(), end, child->tokens.begin()).first;
    most = std::max<int64_t>(most, differs - tokens.begin());
  }
  return most;
}

PrefixNode& PrefixIndex::find(PrefixNode& root, std::span<const int32_t> tokens) const {
  const size_t B = static_cast<size_t>(block_tokens_);
  PrefixNode* node = &root;
  for (size_t at = 0; at + B <= tokens.size(); at += B) {
    PrefixNode* next = child(*node, tokens.subspan(at, B));
    if (!next) break;
    node = next;
  }
  return *node;
}

PrefixNode& PrefixIndex::add(PrefixNode& parent, std::span<const int32_t> tokens) {
  WEIR_CHECK(tokens.size() == static_cast<size_t>(block_tokens_));
  auto made = std::make_unique<PrefixNode>();
  PrefixNode& node = *made;
  node.parent = &parent;
  node.id = next_id_++;
  node.path_hash = hash_after(parent.path_hash, tokens);
  node.index = parent.index + 1;
  node.name_space = parent.name_space;
  node.tokens.assign(tokens.begin(), tokens.end());
  node.blocks.assign(n_groups_, PrefixNode::kNoBlock);
  nodes_.emplace(node.path_hash, std::move(made));
  node.next = parent.first_child;
  if (node.next) node.next->previous = &node;
  parent.first_child = &node;
  ++parent.n_children;
  sort(parent);
  sort(node);
  return node;
}

void PrefixIndex::remove(PrefixNode& leaf) {
  WEIR_CHECK(leaf.is_idle_leaf() && !leaf.restart && leaf.pins == 0);
  for (const uint32_t block : leaf.blocks) WEIR_CHECK(block == PrefixNode::kNoBlock);
  PrefixNode& parent = *leaf.parent;
  parent.last_use = std::max(parent.last_use, leaf.last_use);
  idle_leaves_.erase(&leaf);
  (leaf.previous ? leaf.previous->next : parent.first_child) = leaf.next;
  if (leaf.next) leaf.next->previous = leaf.previous;
  const auto [begin, end] = nodes_.equal_range(leaf.path_hash);
  const auto it = std::find_if(begin, end, [&](const auto& n) { return n.second.get() == &leaf; });
  WEIR_CHECK(it != end);
  nodes_.erase(it);
  --parent.n_children;
  sort(parent);
}

void PrefixIndex::add_live(PrefixNode& node) {
  if (node.live++ == 0) ++n_live_;
  sort(node);
}

void PrefixIndex::drop_live(PrefixNode& node) {
  WEIR_CHECK(node.live > 0);
  if (--node.live == 0) --n_live_;
  sort(node);
}

void PrefixIndex::set_restart(PrefixNode& node, const PrefixNode::Restart& restart) {
  node.restart = restart;
  restarts_.insert(&node);
}

void PrefixIndex::clear_restart(PrefixNode& node) {
  node.restart.reset();
  restarts_.erase(&node);
}

void PrefixIndex::sort(PrefixNode& node) {
  if (node.is_idle_leaf()) {
    idle_leaves_.insert(&node);
  } else {
    idle_leaves_.erase(&node);
  }
}

std::vector<const PrefixNode*> PrefixIndex::all() const {
  std::vector<const PrefixNode*> nodes;
  for (const auto& [hash, node] : nodes_) nodes.push_back(node.get());
  return nodes;
}

void PrefixIndex::check_invariants() const {
  std::unordered_map<const PrefixNode*, uint32_t> children;
  int64_t live = 0;
  size_t leaves = 0, marked = 0;
  for (const auto& [hash, node] : nodes_) {
    WEIR_CHECK(node->parent != nullptr && node->index == node->parent->index + 1);
    WEIR_CHECK(node->name_space == node->parent->name_space);
    WEIR_CHECK(node->tokens.size() == static_cast<size_t>(block_tokens_));
    WEIR_CHECK(hash == node->path_hash &&
               hash == hash_after(node->parent->path_hash, node->tokens));
    WEIR_CHECK(node->parent->is_root() || node->parent->live >= node->live);
    ++children[node->parent];
    WEIR_CHECK((node->previous ? node->previous->next : node->parent->first_child) == node.get());
    WEIR_CHECK(!node->next ||
               (node->next->previous == node.get() && node->next->parent == node->parent));
    live += node->live > 0;
    leaves += node->is_idle_leaf();
    marked += node->restart.has_value();
    WEIR_CHECK(node->is_idle_leaf() == idle_leaves_.contains(node.get()));
    WEIR_CHECK(node->restart.has_value() == restarts_.contains(node.get()));
  }
  for (const auto& [hash, node] : nodes_) WEIR_CHECK(children[node.get()] == node->n_children);
  for (const auto& root : roots_) WEIR_CHECK(children[root.get()] == root->n_children);
  WEIR_CHECK(live == n_live_);
  WEIR_CHECK(leaves == idle_leaves_.size() && marked == restarts_.size());
}

}  // namespace weir

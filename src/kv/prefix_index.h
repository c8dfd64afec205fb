#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "kv/restart.h"
#include "weir/kv_hooks.h"

namespace weir {

// One block of tokens after those of its parents, and the blocks of KV that are known for it.
// Global groups' blocks are kept by their node; local ones are only named here: tables and restart
// points keep them.
struct PrefixNode {
  static constexpr uint32_t kNoBlock = UINT32_MAX;

  struct Restart {
    RestartKind kind{};
    uint64_t last_use = 0;
  };

  PrefixNode* parent = nullptr;  // null for a root
  PrefixNode* first_child = nullptr;
  PrefixNode *next = nullptr, *previous = nullptr;  // children of the same parent
  uint64_t id = 0;                                  // ascends with creation
  uint64_t path_hash = 0;                           // of the root and all tokens up to here
  int64_t index = -1;                               // covers tokens [index*B, (index+1)*B)
  uint32_t n_children = 0;
  uint32_t live = 0;                 // running sequences, and loads, whose path it is on
  uint32_t pins = 0;                 // that end here
  uint32_t stored = 0, writing = 0;  // bit g: the tier has, or is getting, the block of group g
  uint64_t last_use = 0;
  NamespaceId name_space{};
  std::optional<Restart> restart;  // at its end
  std::vector<int32_t> tokens;
  std::vector<uint32_t> blocks;  // per group, or kNoBlock

  bool is_root() const { return parent == nullptr; }
  int64_t end() const { return (index + 1) * static_cast<int64_t>(tokens.size()); }
  bool is_idle_leaf() const { return !is_root() && live == 0 && n_children == 0; }
};

// Nodes in a fixed order, so that the order of a hash map or of addresses decides nothing.
struct ByAge {
  bool operator()(const PrefixNode* a, const PrefixNode* b) const { return a->id < b->id; }
};
using NodeSet = std::set<PrefixNode*, ByAge>;

// Prefixes whose blocks were given up, as half of a hash each, and when they were last used: a
// table of fixed size in sets of eight, in which a new one overwrites the oldest of its set. Tells
// "was evicted" from "was never here", and how long what comes back was away.
class GhostTable {
 public:
  void open(int64_t entries) { entries_.assign(static_cast<size_t>(entries), Entry{}); }
  bool is_open() const { return !entries_.empty(); }
  void remember(uint64_t hash, uint64_t last_use);
  bool knows(uint64_t hash) const { return find(hash) != nullptr; }
  // Of one it knows, by a clock that has gone on since.
  uint64_t last_use(uint64_t hash, uint64_t clock) const {
    return clock - (static_cast<uint32_t>(clock) - find(hash)->last_use);
  }

 private:
  struct Entry {
    uint32_t half_hash = 0;  // 0: empty
    uint32_t last_use = 0;
  };
  static uint32_t half(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) | 1; }
  std::span<const Entry> set_of(uint64_t hash) const;
  const Entry* find(uint64_t hash) const;

  std::vector<Entry> entries_;
};

// Tries of token blocks, one a namespace. Knows nodes and who uses them; blocks are its caller's.
// A child is looked up by a 64-bit hash of the path and then compared by tokens: equal hashes do
// no harm.
class PrefixIndex {
 public:
  // `hash_mask` is for tests: bits of the hash that are used.
  PrefixIndex(int block_tokens, size_t n_groups, uint64_t hash_mask = UINT64_MAX);

  // Bytes that one node is charged for.
  Bytes node_bytes() const;
  int64_t n_nodes() const { return static_cast<int64_t>(nodes_.size()); }
  int64_t n_idle() const { return n_nodes() - n_live_; }  // on no running sequence's path

  PrefixNode& open_root(NamespaceId name_space);
  void close_root(PrefixNode& root);  // it must have no children

  // `tokens` is one block. Null if there is no such child.
  PrefixNode* child(const PrefixNode& parent, std::span<const int32_t> tokens) const;
  // Most tokens at the start of `tokens` that a child of `parent` begins with. O(children).
  int64_t common_with_child(const PrefixNode& parent, std::span<const int32_t> tokens) const;
  PrefixNode& add(PrefixNode& parent, std::span<const int32_t> tokens);
  void remove(PrefixNode& leaf);  // without blocks, children, users, pins or a restart point
  // Hash of the path that `tokens` continue. Never 0.
  uint64_t hash_after(uint64_t path_hash, std::span<const int32_t> tokens) const;

  // The deepest node on the path of `tokens`, which may be the root.
  PrefixNode& find(PrefixNode& root, std::span<const int32_t> tokens) const;

  // A running sequence's path gets longer or shorter by this node.
  void add_live(PrefixNode& node);
  void drop_live(PrefixNode& node);

  void set_restart(PrefixNode& node, const PrefixNode::Restart& restart);
  void clear_restart(PrefixNode& node);

  const NodeSet& idle_leaves() const { return idle_leaves_; }
  const NodeSet& restarts() const { return restarts_; }
  std::vector<const PrefixNode*> all() const;  // for checks; in no order

  void check_invariants() const;

 private:
  void sort(PrefixNode& node);  // into idle_leaves_, or out of it

  const int block_tokens_;
  const size_t n_groups_;
  const uint64_t hash_mask_;
  uint64_t next_id_ = 0;
  int64_t n_live_ = 0;
  std::vector<std::unique_ptr<PrefixNode>> roots_;
  std::unordered_multimap<uint64_t, std::unique_ptr<PrefixNode>> nodes_;  // by path_hash
  NodeSet idle_leaves_, restarts_;
};

}  // namespace weir

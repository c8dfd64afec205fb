// Inside of KvCache, shared by the sources that implement it. Nothing else includes this.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "geometry/replay.h"
#include "geometry/window.h"
#include "kv/block_pool.h"
#include "kv/kv_cache.h"
#include "kv/kv_tier_impl.h"
#include "kv/return_ages.h"
#include "kv/sequence.h"

namespace weir {

struct KvCache::Impl {
  // What the step under way adds to one sequence in one group: `scratch` blocks that are not
  // stored, then the new ones, the first of them at index `first_new`.
  struct NewBlocks {
    int64_t scratch = 0;
    int64_t first_new = 0;
    std::vector<uint32_t> slots;
  };
  struct StepItemState {
    SeqId seq{};
    int64_t n_tokens = 0, min_accept = 0;
    int64_t first_position = 0;
    std::vector<NewBlocks> groups;
    std::vector<int32_t> tokens;  // of a named sequence
  };
  // How many blocks to take, per group.
  using Counts = std::vector<int64_t>;
  using Slots = std::vector<std::vector<uint32_t>>;

  // Which namespace pays for a block, and the node that names it.
  struct BlockOwner {
    static constexpr NamespaceId kNobody{UINT32_MAX};
    NamespaceId name_space = kNobody;
    PrefixNode* node = nullptr;
  };
  struct Namespace {
    PrefixNode* root = nullptr;
    Bytes bytes, floor, ceiling;
    std::optional<Digest> tier_root;  // if it takes part in the tier
    bool is_closed = false;
  };
  // What an operation wants to take.
  struct Room {
    // Asked again after each eviction: an eviction may leave a shared block with one owner.
    std::function<Counts()> counts;
    std::span<const SeqId> keep = {};  // never evicted for it
    BlockUse global_use = BlockUse::live, local_use = BlockUse::live;
    Bytes metadata = {};
    std::map<NamespaceId, Bytes> growth = {};  // block bytes by namespace, at most
  };

  Impl(KvLayout l, Budget& b, const KvCacheOptions& o);

  const KvLayout layout;
  const KvCacheOptions options;
  Budget& budget;
  std::vector<KvObserver*> observers;
  std::vector<std::unique_ptr<BlockPool>> pools;  // per group
  std::map<SeqId, Sequence> sequences;            // in order of creation
  uint32_t next_id = 0;
  uint64_t clock = 0;  // counts uses, for least recently used
  EvictionPolicy* policy = nullptr;
  std::vector<StepItemState> step;  // empty: none under way

  PrefixIndex index;
  GhostTable ghosts;
  ReturnAges returns;
  Reservation metadata;       // of nodes and ghosts
  Reservation step_metadata;  // for nodes that the step under way may make
  std::map<NamespaceId, Namespace> namespaces;
  std::vector<std::vector<BlockOwner>> owners;  // [group][slot]
  std::map<PinId, PrefixNode*> pins;
  uint64_t next_pin = 0;
  uint32_t next_namespace = 0;
  double pin_share = 0.5;
  int64_t restart_limit = 16, rewind_bound = 0;
  KvCounters counters;
  std::function<Status()> resume_fault;  // for tests
  TierSide tier;

  size_t n_groups() const { return layout.groups.size(); }
  int64_t block_tokens() const { return layout.format.block_tokens; }
  const Retention& retention(size_t g) const { return layout.groups[g].retention; }

  Sequence& at(SeqId seq);
  const Sequence& at(SeqId seq) const { return const_cast<Impl*>(this)->at(seq); }
  // The same for an operation that may free or take blocks: no step may be under way.
  Sequence& change(SeqId seq);
  void touch(Sequence& s) {
    s.last_use = ++clock;
    if (s.tail) s.tail->last_use = clock;
  }

  void open_ghosts();
  static Status still_replaying(const Sequence& s);

  // --- blocks: references, names, who pays (kv_blocks.cpp) ---
  void own(size_t g, uint32_t slot, NamespaceId id);
  void drop(size_t g, uint32_t slot);    // one table less
  void unkeep(size_t g, uint32_t slot);  // one node or restart point less
  void unlease(size_t g, uint32_t slot);
  // Before a reference goes: what nobody but a tier holds then loses its name and owner.
  void lose_reference(size_t g, uint32_t slot);
  void name(size_t g, uint32_t slot, PrefixNode& node);
  void unname(size_t g, uint32_t slot);
  // Before its only owner writes to it again.
  void reopen(size_t g, uint32_t slot);
  void forget_owner(size_t g, uint32_t slot);
  Namespace& space(NamespaceId id);
  const Namespace& space(NamespaceId id) const { return const_cast<Impl*>(this)->space(id); }
  NamespaceId payer(const Sequence& s) const {
    return s.tail ? s.tail->name_space : BlockOwner::kNobody;
  }

  // --- the path of a named sequence (kv_path.cpp) ---
  void enter_path(Sequence& s, PrefixNode& tail);
  void share_path(Sequence& s);           // into its tables, when it starts
  void leave_path(Sequence& s);           // back to the root
  void cut_path(Sequence& s, int64_t n);  // back to n tokens
  void forget_name(Sequence& s);          // unnamed from here on
  void extend_path(Sequence& s, std::span<const int32_t> tokens);
  void name_blocks(Sequence& s, PrefixNode& node, bool local_only);
  void replayed(Sequence& s, std::span<const int32_t> tokens);
  void check_replayed(const Sequence& s, std::span<const int32_t> tokens) const;
  void forget_namespace_if_unused(NamespaceId id);

  // --- restart points (kv_restart.cpp) ---
  // Calls visit(group, slot) for the run of a restart at the node's end; false if it is incomplete.
  template <typename Visit>
  bool for_run(const PrefixNode& node, Visit visit) const;
  bool has_run(const PrefixNode& node) const;
  bool reads_nothing_local(const PrefixNode& node) const;
  bool mark(PrefixNode& node, RestartKind kind);
  void unmark(PrefixNode& node);
  void move_latest(Sequence& s);
  void thin(PrefixNode& tail);
  Bytes run_unique(const PrefixNode& node) const;
  // Bytes that go with the nodes, and with the restart points at their ends.
  Bytes freed_with(std::span<const PrefixNode* const> nodes) const;
  Bytes pinned_bytes(PrefixNode& added) const;

  // --- chains (kv_chain.cpp) ---
  // Whether a conversation can go on at the node's end from what is kept for it.
  bool is_useful(const PrefixNode& node) const;
  bool is_restart(const PrefixNode& node) const {
    return node.restart.has_value() || reads_nothing_local(node);
  }
  int64_t restart_below(
      const PrefixNode& node) const;  // the nearest boundary before the node's end
  int64_t first_computed(const PrefixNode& node) const;  // by who returns to the node's end
  // Removes idle leaves from `leaf` up while they are worth nothing.
  void trim_chain(PrefixNode* leaf);
  PrefixNode* drop_upwards(PrefixNode* node, int64_t from);
  // The nodes that dropping from token `from` on would remove, from the end of the chain up.
  std::vector<const PrefixNode*> dropped(const PrefixNode& end, int64_t from) const;
  void remove_leaf(PrefixNode& leaf, bool remember);
  // The nodes that would go with an idle leaf: it, and those before it that are worth nothing then.
  std::vector<PrefixNode*> tail_of(PrefixNode& leaf) const;

  // --- blocks of sequences ---
  int64_t end_block(const Sequence& s, size_t g) const;
  void drop_all(Sequence& s);
  // Drops blocks that no later query reads, and blocks past the end.
  void trim(Sequence& s);
  // Seals the blocks from `first_block` on that are full and still open.
  void seal_full(Sequence& s, size_t g, int64_t first_block);

  // --- room (kv_room.cpp) ---
  // Takes blocks for all groups or for none, evicting what `room` does not keep if needed.
  Result<Slots> take(const Room& room);
  void give_back(const Slots& taken);
  Status make_room(const Room& room);
  Status fit_ceiling(NamespaceId id, Bytes more, const Room& room);
  Bytes need(const Counts& counts) const;
  bool has_slots(const Counts& counts) const;
  bool release_spares();
  // Bytes that `counts` would add to the budget's use after every candidate went; nothing if the
  // address space would still be too small.
  std::optional<Bytes> need_after_evicting(std::span<const EvictionCandidate> from,
                                           const Counts& counts) const;
  std::map<NamespaceId, Bytes> growth_of(const Sequence& s, const Counts& counts) const;

  // --- what may go (kv_evict.cpp) ---
  struct Evictable {
    std::vector<EvictionCandidate> units;
    std::vector<PrefixNode*> nodes;  // of each; null for sequences
  };
  Evictable evictable(std::span<const SeqId> keep) const;
  void add_sequences(Evictable& all, std::span<const SeqId> keep) const;
  void add_tail(Evictable& all, PrefixNode& leaf, const ReturnAges::Rates& rates) const;
  void add_restart(Evictable& all, PrefixNode& node, const ReturnAges::Rates& rates) const;
  // Without those of other namespaces that would fall under their floor.
  Evictable without_protected(Evictable all, const std::map<NamespaceId, Bytes>& growth) const;
  int64_t unique_bytes(const Sequence& s) const;
  // False if the policy refuses.
  bool evict_one(const Evictable& from, int64_t bytes_missing);
  void evict(const EvictionCandidate& unit, PrefixNode* node);

  // --- the tier: what is under way (kv_tier.cpp), out (kv_demote.cpp), in (kv_load.cpp) ---
  using Load = TierSide::Load;
  using NodeBlock = std::pair<PrefixNode*, size_t>;  // and its group
  static uint32_t bit(size_t g) { return uint32_t{1} << g; }
  bool uses_tier(NamespaceId id) const { return tier.tier() && space(id).tier_root.has_value(); }
  void take_in(const TierDone& done);
  void drain_tier();
  void check_tier() const;

  std::vector<NodeBlock> blocks_of(const EvictionCandidate& unit, PrefixNode& node) const;
  std::vector<NodeBlock> global_blocks(PrefixNode& last, int64_t first) const;
  void add_run(std::vector<NodeBlock>& blocks, const PrefixNode& node) const;
  void drop_stored(std::vector<NodeBlock>& blocks) const;
  bool is_worth_storing(const EvictionCandidate& unit, const PrefixNode& node,
                        const std::vector<NodeBlock>& blocks) const;
  std::vector<Digest> names_of(const PrefixNode& node) const;
  std::vector<std::byte> header_of(const NodeBlock& block, const std::vector<Digest>& names) const;
  RecordKey key_of(const NodeBlock& block, const std::vector<Digest>& names) const;
  // False if the tier takes no more, or `most` bytes are on their way.
  bool write(const NodeBlock& block, const std::vector<Digest>& names);
  bool write_all(const std::vector<NodeBlock>& blocks, const PrefixNode& deepest, Bytes most);
  Bytes being_written() const;
  void copy_out(const EvictionCandidate& unit, PrefixNode& node);
  void written(TierSide::Write write, bool is_ok);
  void erase_records(NamespaceId id, std::span<const int32_t> tokens, int64_t from);

  std::vector<PrefixNode*> path_of(const Load& load) const;
  bool reserve_memory(Load& load, Bytes size);
  bool ask(Load& load);
  Boundaries::Start start_in_ram(const std::vector<PrefixNode*>& path) const;
  // Where to start with the blocks that are in RAM and those for which more(g, i) is true.
  template <typename More>
  Boundaries::Start best_start(const Load& load, const std::vector<PrefixNode*>& path,
                               More more) const;
  void read_found(LoadId id, Load& load, const std::vector<bool>& held);
  std::vector<TierSide::Part> parts_for(const Load& load, const std::vector<PrefixNode*>& path,
                                        const Boundaries::Start& start) const;
  Status take_parts(Load& load, const std::vector<PrefixNode*>& path,
                    const Boundaries::Start& start);
  void hold_path(Load& load, PrefixNode& end);
  void leave_path(Load& load);
  void ask_for_parts(LoadId id, Load& load);
  void arrived(LoadId id, size_t part, bool is_ok);
  void install(Load& load);
  PrefixNode& install_nodes(Load& load, const std::vector<PrefixNode*>& path,
                            const Boundaries::Start& start);
  void end(Load& load);
  void release_parts(Load& load);
  void forget_load_if_over(LoadId id);

  // --- steps (step.cpp) ---
  std::vector<StepItemState> plan(std::span<const StepItem> items) const;
  Counts new_block_counts(const std::vector<StepItemState>& items) const;
  StepTable table(const StepItemState& item, size_t g, int32_t first_scratch) const;
  void commit(std::span<const int64_t> accepted);
  void abort();
  void commit_item(StepItemState& item, int64_t accepted);
  void adopt(Sequence& s, size_t g, NewBlocks& added, int64_t accepted);
  int64_t first_stored_row(const Sequence& s, size_t g, int64_t sure) const;
  // Whether the sequence reads stored rows of this group instead of writing them.
  bool reads_stored_rows(const Sequence& s, size_t g) const {
    return s.is_replaying() && !layout.is_local(layout.groups[g]);
  }
  Status check_items(std::span<const StepItem> items) const;
  Bytes node_need(const std::vector<StepItemState>& items) const;
  std::map<NamespaceId, Bytes> growth_of(const std::vector<StepItemState>& items) const;

  // --- rewinding and shifting (kv_rewind.cpp, kv_shift.cpp) ---
  bool can_cut(const Sequence& s, int64_t n) const;
  int64_t min_rewind(const Sequence& s) const;
  Status rewind(SeqId seq, int64_t n);
  Status remove_middle(SeqId seq, int64_t row0, int64_t row1);
  // Gives the rows from row0 on the positions of `moved` (one per row of the sequence).
  Status move_positions(SeqId seq, int64_t row0, int64_t row1, std::vector<int64_t> moved,
                        const KeyRotator& rotator);
  void set_positions(Sequence& s, std::vector<int64_t> positions, int64_t first_changed);
  Result<Sequence> fork(SeqId seq);

  void check_sequence(const Sequence& s) const;
  std::vector<uint32_t> count_keeps(size_t g) const;
  std::vector<uint32_t> count_leases(size_t g) const;
  void check_references() const;
  void check_path(const Sequence& s) const;
  void check_index() const;
  void check_namespaces() const;
  void check_invariants() const;
};

template <typename Visit>
bool KvCache::Impl::for_run(const PrefixNode& end, Visit visit) const {
  for (size_t g = 0; g < n_groups(); ++g) {
    if (!layout.is_local(layout.groups[g])) continue;
    const PrefixNode* node = &end;
    for (int64_t n = restart_blocks(retention(g), end.end(), block_tokens()); n > 0; --n) {
      if (node->blocks[g] == PrefixNode::kNoBlock) return false;
      visit(g, node->blocks[g]);
      node = node->parent;
    }
  }
  return true;
}

}  // namespace weir

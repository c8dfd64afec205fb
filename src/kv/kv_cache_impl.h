// Inside of KvCache, shared by the sources that implement it. Nothing else includes this.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "geometry/window.h"
#include "kv/block_pool.h"
#include "kv/kv_cache.h"
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
  };
  // How many blocks to take, per group.
  using Counts = std::vector<int64_t>;
  using Slots = std::vector<std::vector<uint32_t>>;

  Impl(KvLayout l, Budget& b) : layout(std::move(l)), budget(b) {}

  const KvLayout layout;
  Budget& budget;
  std::vector<KvObserver*> observers;
  std::vector<std::unique_ptr<BlockPool>> pools;  // per group
  std::map<SeqId, Sequence> sequences;            // in order of creation
  uint32_t next_id = 0;
  uint64_t clock = 0;  // counts uses, for least recently used
  EvictionPolicy* policy = nullptr;
  std::vector<StepItemState> step;  // empty: none under way

  size_t n_groups() const { return layout.groups.size(); }
  int64_t block_tokens() const { return layout.format.block_tokens; }
  const Retention& retention(size_t g) const { return layout.groups[g].retention; }

  Sequence& at(SeqId seq);
  const Sequence& at(SeqId seq) const { return const_cast<Impl*>(this)->at(seq); }
  // The same for an operation that may free or take blocks: no step may be under way.
  Sequence& change(SeqId seq);
  void touch(Sequence& s) { s.last_use = ++clock; }

  // --- blocks of sequences ---
  void drop_all(Sequence& s);
  // Drops blocks that no later query reads, and blocks past the end.
  void trim(Sequence& s);
  // Seals the blocks from `first_block` on that are full and still open.
  void seal_full(Sequence& s, size_t g, int64_t first_block);

  // --- room (kv_evict.cpp) ---
  // Takes blocks for all groups or for none, evicting sequences outside `keep` if needed. `counts`
  // is asked again after each eviction: an eviction may leave a shared block with one owner.
  Result<Slots> take(const std::function<Counts()>& counts, std::span<const SeqId> keep,
                     bool local_as_headroom);
  Status make_room(const std::function<Counts()>& counts, std::span<const SeqId> keep);
  Bytes need(const Counts& counts) const;
  bool has_slots(const Counts& counts) const;
  // Bytes that `counts` would add to the budget's use after every candidate went; nothing if the
  // address space would still be too small.
  std::optional<Bytes> need_after_evicting(std::span<const EvictionCandidate> candidates,
                                           const Counts& counts) const;
  std::vector<EvictionCandidate> candidates(std::span<const SeqId> keep) const;
  int64_t unique_bytes(const Sequence& s) const;
  // False if the policy refuses.
  bool evict_one(std::span<const EvictionCandidate> from, int64_t bytes_missing);

  // --- steps (step.cpp) ---
  std::vector<StepItemState> plan(std::span<const StepItem> items) const;
  Counts new_block_counts(const std::vector<StepItemState>& items) const;
  StepTable table(const StepItemState& item, size_t g, int32_t first_scratch) const;
  void commit(std::span<const int64_t> accepted);
  void abort();
  void adopt(Sequence& s, size_t g, NewBlocks& added, int64_t accepted);

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
  void check_references() const;
  void check_invariants() const;
};

}  // namespace weir

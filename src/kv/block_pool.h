#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "geometry/kv_layout.h"
#include "kv/budget.h"
#include "kv/kv_memory.h"
#include "weir/kv_hooks.h"

namespace weir {

// What a block is taken for.
enum class BlockUse : uint8_t {
  live,        // a table's
  headroom,    // a step's, until settled
  staging_in,  // a tier's, which fills it; until it has arrived
};

// The blocks of one group, side by side in one stretch of address space, cut into extents that are
// committed while a block touches them. The budget pays for committed extents: blocks under their
// own tag, the rest as committed_free. Free slots are taken lowest first, so that high extents
// drain, but those on committed memory before all others: no extent is committed while a block fits
// in those there are. An extent without a block goes back to the system and the budget at once,
// but for a few spare ones.
// Costs O(log n) per block taken or freed, and per slot of an extent that comes or goes.
class BlockPool {
 public:
  struct Options {
    Bytes address_space;        // rounded up to an extent
    Bytes extent;               // a multiple of 4 KiB; 2 MiB pages are asked for when of theirs
    bool poison = false;        // see KvCacheOptions
    int64_t spare_extents = 0;  // see KvCacheOptions
  };

  // Everything given must outlive the pool; its blocks must be dropped before it. Errors: io_error.
  static Result<std::unique_ptr<BlockPool>> create(const KvGroup& group, Budget& budget,
                                                   KvMemory& memory,
                                                   const std::vector<KvObserver*>& observers,
                                                   const Options& options);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Whether the address space has room for n blocks more, after n_freed of those there are went.
  bool has_slots(int64_t n_freed, int64_t n) const;
  // Bytes that taking n blocks adds to the budget's use.
  Bytes need(int64_t n) const { return change({}, n); }
  // The same, negative if bytes come back, after the blocks of `freed` went and without spares.
  Bytes change(std::span<const uint32_t> freed, int64_t n) const;

  // n blocks, open, with one reference each; for staging in, that is a lease. All or nothing.
  // Errors: over_budget, io_error.
  Result<std::vector<uint32_t>> take(int64_t n, BlockUse use);
  // Gives empty extents back that were kept. False if there were none.
  bool release_spares();
  void settle(uint32_t slot);  // headroom becomes live
  // One more table reads it; only sealed blocks are shared.
  void share(uint32_t slot);
  // One table less. The block is freed with the last reference.
  void drop(uint32_t slot);
  // The same for references of the prefix index: a block that only they hold is kept, not live.
  void keep(uint32_t slot);
  void unkeep(uint32_t slot);
  // The same for a tier that reads the block: it is neither freed nor written meanwhile.
  void lease(uint32_t slot);
  void unlease(uint32_t slot);
  void arrive(uint32_t slot);  // a staged block is filled: sealed, its lease remains
  void seal(uint32_t slot);    // full: never written again
  void reopen(uint32_t slot);  // its only owner cut it back

  uint32_t references(uint32_t slot) const { return slots_[slot].references; }
  // Those of `references` that are the prefix index's.
  uint32_t keeps(uint32_t slot) const { return slots_[slot].keeps; }
  uint32_t leases(uint32_t slot) const { return slots_[slot].leases; }
  bool is_kept_only(uint32_t slot) const {
    return slots_[slot].keeps > 0 && slots_[slot].keeps == slots_[slot].references;
  }
  bool is_sealed(uint32_t slot) const { return slots_[slot].is_sealed; }
  bool is_headroom(uint32_t slot) const { return slots_[slot].is_headroom; }
  std::byte* memory(uint32_t slot) const { return base_ + int64_t{slot} * block_bytes_; }
  std::span<std::byte> contents(uint32_t slot) const {
    return {memory(slot), static_cast<size_t>(block_bytes_)};
  }
  const KvGroup& group() const { return group_; }

  Bytes block_bytes() const { return {block_bytes_}; }
  Bytes live() const { return live_.size(); }
  Bytes kept() const { return kept_.size(); }
  Bytes headroom() const { return headroom_.size(); }
  Bytes staging_in() const { return staging_in_.size(); }
  Bytes staging_out() const { return staging_out_.size(); }  // leased, and no table's
  Bytes committed_free() const { return free_bytes_.size(); }
  int64_t end_slot() const { return static_cast<int64_t>(slots_.size()); }

  // Aborts if slots, extents and reservations contradict each other.
  void check_invariants() const;

 private:
  struct Slot {
    uint32_t references = 0;  // of tables, of the index and of tiers
    uint32_t keeps = 0;       // of the index
    uint32_t leases = 0;      // of tiers
    bool is_sealed = false;
    bool is_headroom = false;
    bool is_staging = false;
    uint32_t tables() const { return references - keeps - leases; }
  };
  struct Range {
    int64_t begin, end;
  };

  BlockPool(const KvGroup& group, Budget& budget, KvMemory& memory,
            const std::vector<KvObserver*>& observers, const Options& options, std::byte* base);

  Range extents_of(int64_t slot) const;
  Range slots_of(int64_t extent) const;
  bool is_committed(int64_t extent) const;
  bool is_on_committed(int64_t slot) const;
  std::vector<uint32_t> choose(int64_t n) const;
  // Puts the free slots that touch an extent where they belong after it came or went.
  void sort_slots(int64_t extent);
  Status commit_extents(const std::vector<int64_t>& extents);
  void free_slot(uint32_t slot);
  void give_back(int64_t extent);
  Reservation& bytes_of(const Slot& slot);
  // Applies `edit` to the slot; its bytes follow to where they belong then.
  template <typename Edit>
  void change(uint32_t slot, Edit edit);

  const KvGroup& group_;
  Budget& budget_;
  KvMemory& memory_;
  const std::vector<KvObserver*>& observers_;
  const Options options_;
  std::byte* const base_;
  const int64_t block_bytes_;
  const int64_t extent_;
  const int64_t max_slots_;

  std::vector<Slot> slots_;                // up to the highest on committed memory
  std::set<uint32_t> ready_;               // the free ones on committed memory
  std::set<uint32_t> bare_;                // the other free ones
  std::vector<int32_t> blocks_in_extent_;  // taken blocks that touch it
  std::set<int64_t> spares_;               // extents that are committed without a block
  Reservation live_, kept_, headroom_, staging_in_, staging_out_, free_bytes_;
};

}  // namespace weir

#include "kv/block_pool.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "kv/pool_extent.h"

namespace weir {

Result<std::unique_ptr<BlockPool>> BlockPool::create(const KvGroup& group, Budget& budget,
                                                     KvMemory& memory,
                                                     const std::vector<KvObserver*>& observers,
                                                     const Options& options) {
  WEIR_CHECK(options.extent.v > 0 && group.block_bytes.v > 0);
  Options rounded = options;
  // At least one block, so that a tiny budget is refused by its limit and not by address space.
  rounded.address_space = {
      round_up(std::max(options.address_space.v, group.block_bytes.v), options.extent.v)};
  Result<std::byte*> base = memory.reserve(rounded.address_space);
  if (!base) return base.error();
  return std::unique_ptr<BlockPool>(
      new BlockPool(group, budget, memory, observers, rounded, *base));
}

BlockPool::BlockPool(const KvGroup& group, Budget& budget, KvMemory& memory,
                     const std::vector<KvObserver*>& observers, const Options& options,
                     std::byte* base)
    : group_(group),
      budget_(budget),
      memory_(memory),
      observers_(observers),
      options_(options),
      base_(base),
      block_bytes_(group.block_bytes.v),
      extent_(options.extent.v),
      max_slots_(options.address_space.v / group.block_bytes.v) {
  const Tag tag = group.retention.kind == LayerKind::global ? Tag::live_global : Tag::live_local;
  live_ = budget.open(tag);
  headroom_ = budget.open(Tag::step_headroom);
  free_bytes_ = budget.open(Tag::committed_free);
}

BlockPool::~BlockPool() { memory_.unreserve(base_, options_.address_space); }

BlockPool::Range BlockPool::extents_of(int64_t slot) const {
  return {slot * block_bytes_ / extent_, ceil_div((slot + 1) * block_bytes_, extent_)};
}

template <typename Visit>
bool BlockPool::for_lowest_free(const std::set<uint32_t>& freed, int64_t n, Visit visit) const {
  auto a = free_slots_.begin();
  auto b = freed.begin();
  int64_t beyond = end_slot();
  for (int64_t i = 0; i < n; ++i) {
    if (a != free_slots_.end() && (b == freed.end() || *a < *b)) {
      visit(int64_t{*a++});
    } else if (b != freed.end()) {
      visit(int64_t{*b++});
    } else if (beyond < max_slots_) {
      visit(beyond++);
    } else {
      return false;
    }
  }
  return true;
}

Bytes BlockPool::change(std::span<const uint32_t> freed, int64_t n) const {
  std::map<int64_t, int32_t> touched;  // taken blocks in the extents that freed ones touch
  int64_t extents = 0;
  for (const uint32_t slot : freed) {
    const Range range = extents_of(slot);
    for (int64_t e = range.begin; e < range.end; ++e) {
      const auto [entry, is_new] = touched.try_emplace(e, 0);
      if (is_new) entry->second = blocks_in_extent_[static_cast<size_t>(e)];
      if (--entry->second == 0) --extents;
    }
  }
  int64_t next_extent = 0;  // those before are committed or counted; slots come in ascending order
  const auto visit = [&](int64_t slot) {
    const Range range = extents_of(slot);
    for (int64_t e = std::max(range.begin, next_extent); e < range.end; ++e) {
      const auto entry = touched.find(e);
      const bool is_committed = entry != touched.end() ? entry->second > 0
                                : e < static_cast<int64_t>(blocks_in_extent_.size())
                                    ? blocks_in_extent_[static_cast<size_t>(e)] > 0
                                    : false;
      if (!is_committed) ++extents;
    }
    next_extent = std::max(next_extent, range.end);
  };
  const std::set<uint32_t> ordered(freed.begin(), freed.end());
  // A pool that has no slot left needs more than any budget has; take() then says so.
  if (!for_lowest_free(ordered, n, visit)) return kNoSlots;
  return {extents * extent_};
}

Status BlockPool::commit_extents(const std::vector<int64_t>& extents) {
  const bool huge = extent_ % kHugePage.v == 0;
  for (size_t begin = 0, end = 0; begin < extents.size(); begin = end) {
    for (end = begin + 1; end < extents.size() && extents[end] == extents[end - 1] + 1;) ++end;
    const Bytes size{static_cast<int64_t>(end - begin) * extent_};
    if (Status s = memory_.commit(base_ + extents[begin] * extent_, size, huge); !s.ok()) {
      for (size_t i = 0; i < begin; ++i) memory_.decommit(base_ + extents[i] * extent_, {extent_});
      return s;
    }
  }
  return {};
}

Result<std::vector<uint32_t>> BlockPool::take(int64_t n, bool as_headroom) {
  std::vector<uint32_t> taken;
  std::vector<int64_t> new_extents;
  const bool has_slots = for_lowest_free({}, n, [&](int64_t slot) {
    taken.push_back(static_cast<uint32_t>(slot));
    const Range range = extents_of(slot);
    for (int64_t e = range.begin; e < range.end; ++e) {
      const bool is_committed = e < static_cast<int64_t>(blocks_in_extent_.size()) &&
                                blocks_in_extent_[static_cast<size_t>(e)] > 0;
      if (!is_committed && (new_extents.empty() || new_extents.back() < e))
        new_extents.push_back(e);
    }
  });
  if (!has_slots) {
    return Status(Code::over_budget,
                  "the address space of a KV pool ends at " + format_bytes(options_.address_space) +
                      ", set when it was made; start again with a larger KV budget");
  }
  Result<Reservation> room =
      budget_.reserve({static_cast<int64_t>(new_extents.size()) * extent_}, Tag::committed_free);
  if (!room) return room.error();
  if (Status s = commit_extents(new_extents); !s.ok()) return s;

  free_bytes_.merge(std::move(*room));
  (as_headroom ? headroom_ : live_).merge(free_bytes_.split({n * block_bytes_}));
  for (const uint32_t slot : taken) {
    if (slot >= slots_.size()) {
      slots_.resize(slot + size_t{1});
    } else {
      free_slots_.erase(slot);
    }
    slots_[slot] = {.references = 1, .is_sealed = false, .is_headroom = as_headroom};
    const Range range = extents_of(slot);
    if (static_cast<size_t>(range.end) > blocks_in_extent_.size()) {
      blocks_in_extent_.resize(static_cast<size_t>(range.end));
    }
    for (int64_t e = range.begin; e < range.end; ++e) ++blocks_in_extent_[static_cast<size_t>(e)];
    if (options_.poison) std::memset(memory(slot), 0xff, static_cast<size_t>(block_bytes_));
    for (KvObserver* o : observers_) o->on_block_taken(static_cast<int>(group_.id), slot);
  }
  return taken;
}

void BlockPool::settle(uint32_t slot) {
  Slot& s = slots_[slot];
  if (!std::exchange(s.is_headroom, false)) return;
  live_.merge(headroom_.split({block_bytes_}));
}

void BlockPool::share(uint32_t slot) {
  Slot& s = slots_[slot];
  WEIR_CHECK(s.references > 0 && s.is_sealed);
  ++s.references;
}

void BlockPool::drop(uint32_t slot) {
  Slot& s = slots_[slot];
  WEIR_CHECK(s.references > 0);
  if (--s.references == 0) free_slot(slot);
}

void BlockPool::seal(uint32_t slot) {
  Slot& s = slots_[slot];
  WEIR_CHECK(s.references == 1 && !s.is_headroom);
  if (std::exchange(s.is_sealed, true)) return;
  for (KvObserver* o : observers_) o->on_block_sealed(static_cast<int>(group_.id), slot);
}

void BlockPool::reopen(uint32_t slot) {
  WEIR_CHECK(slots_[slot].references == 1);
  slots_[slot].is_sealed = false;
}

void BlockPool::free_slot(uint32_t slot) {
  Slot& s = slots_[slot];
  if (options_.poison) std::memset(memory(slot), 0xff, static_cast<size_t>(block_bytes_));
  free_bytes_.merge((s.is_headroom ? headroom_ : live_).split({block_bytes_}));
  s = {};
  free_slots_.insert(slot);
  while (!free_slots_.empty() && *free_slots_.rbegin() + size_t{1} == slots_.size()) {
    free_slots_.erase(std::prev(free_slots_.end()));
    slots_.pop_back();
  }
  const Range range = extents_of(slot);
  for (int64_t e = range.begin; e < range.end; ++e) {
    if (--blocks_in_extent_[static_cast<size_t>(e)] > 0) continue;
    // Memory first, then the bytes: another thread may take them at once.
    memory_.decommit(base_ + e * extent_, {extent_});
    free_bytes_.split({extent_});
  }
  for (KvObserver* o : observers_) o->on_block_freed(static_cast<int>(group_.id), slot);
}

void BlockPool::check_invariants() const {
  int64_t live = 0, headroom = 0;
  std::vector<int32_t> in_extent(blocks_in_extent_.size());
  for (int64_t slot = 0; slot < end_slot(); ++slot) {
    const Slot& s = slots_[static_cast<size_t>(slot)];
    WEIR_CHECK((s.references == 0) == free_slots_.contains(static_cast<uint32_t>(slot)));
    if (s.references == 0) {
      WEIR_CHECK(!s.is_sealed && !s.is_headroom);
      continue;
    }
    WEIR_CHECK(s.is_sealed || s.references == 1);
    WEIR_CHECK(!(s.is_sealed && s.is_headroom));
    (s.is_headroom ? headroom : live) += block_bytes_;
    const Range range = extents_of(slot);
    for (int64_t e = range.begin; e < range.end; ++e) ++in_extent[static_cast<size_t>(e)];
  }
  WEIR_CHECK(free_slots_.empty() || *free_slots_.rbegin() < slots_.size());
  WEIR_CHECK(slots_.empty() || slots_.back().references > 0);
  WEIR_CHECK(in_extent == blocks_in_extent_);
  const int64_t committed =
      extent_ * std::count_if(in_extent.begin(), in_extent.end(), [](int32_t n) { return n > 0; });
  WEIR_CHECK(live_.size().v == live && headroom_.size().v == headroom);
  WEIR_CHECK(free_bytes_.size().v == committed - live - headroom);
}

}  // namespace weir

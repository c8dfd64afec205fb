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
  const bool is_global = group.retention.kind == LayerKind::global;
  live_ = budget.open(is_global ? Tag::live_global : Tag::live_local);
  kept_ = budget.open(is_global ? Tag::idle : Tag::restart);
  headroom_ = budget.open(Tag::step_headroom);
  staging_in_ = budget.open(Tag::staging_in);
  staging_out_ = budget.open(Tag::staging_out);
  free_bytes_ = budget.open(Tag::committed_free);
}

BlockPool::~BlockPool() {
  release_spares();
  memory_.unreserve(base_, options_.address_space);
}

BlockPool::Range BlockPool::extents_of(int64_t slot) const {
  return {slot * block_bytes_ / extent_, ceil_div((slot + 1) * block_bytes_, extent_)};
}

BlockPool::Range BlockPool::slots_of(int64_t extent) const {
  return {extent * extent_ / block_bytes_,
          std::min(max_slots_, ceil_div((extent + 1) * extent_, block_bytes_))};
}

bool BlockPool::is_committed(int64_t extent) const {
  if (extent >= static_cast<int64_t>(blocks_in_extent_.size())) return false;
  return blocks_in_extent_[static_cast<size_t>(extent)] > 0 || spares_.contains(extent);
}

bool BlockPool::is_on_committed(int64_t slot) const {
  const Range range = extents_of(slot);
  for (int64_t e = range.begin; e < range.end; ++e) {
    if (!is_committed(e)) return false;
  }
  return true;
}

bool BlockPool::has_slots(int64_t n_freed, int64_t n) const {
  const int64_t free = static_cast<int64_t>(ready_.size() + bare_.size());
  return n <= free + n_freed + max_slots_ - end_slot();
}

Bytes BlockPool::change(std::span<const uint32_t> freed, int64_t n) const {
  std::map<int64_t, int32_t> touched;  // taken blocks in the extents that freed ones touch
  int64_t extents = 0;
  std::set<uint32_t> bare;  // slots of extents that would be given back
  for (const uint32_t slot : freed) {
    const Range range = extents_of(slot);
    for (int64_t e = range.begin; e < range.end; ++e) {
      const auto [entry, is_new] = touched.try_emplace(e, 0);
      if (is_new) entry->second = blocks_in_extent_[static_cast<size_t>(e)];
      if (--entry->second > 0) continue;
      --extents;
      const Range slots = slots_of(e);
      for (int64_t s = slots.begin; s < slots.end; ++s) bare.insert(static_cast<uint32_t>(s));
    }
  }
  // Slots on memory that stays committed come first and cost nothing.
  int64_t ready = static_cast<int64_t>(ready_.size());
  for (const uint32_t slot : bare) ready -= ready_.contains(slot) ? 1 : 0;
  for (const uint32_t slot : freed) ready += bare.contains(slot) ? 0 : 1;
  if (n <= ready) return {extents * extent_};

  bare.insert(bare_.begin(), bare_.end());
  auto next_bare = bare.begin();
  int64_t next_beyond = end_slot();
  int64_t next_extent = 0;  // those before are committed or counted; slots come in ascending order
  for (int64_t i = ready; i < n; ++i) {
    const int64_t slot = next_bare != bare.end() ? int64_t{*next_bare++} : next_beyond++;
    const Range range = extents_of(slot);
    for (int64_t e = std::max(range.begin, next_extent); e < range.end; ++e) {
      const auto entry = touched.find(e);
      const bool stays = entry != touched.end() ? entry->second > 0 : is_committed(e);
      if (!stays) ++extents;
    }
    next_extent = std::max(next_extent, range.end);
  }
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

std::vector<uint32_t> BlockPool::choose(int64_t n) const {
  std::vector<uint32_t> chosen;
  for (const std::set<uint32_t>* slots : {&ready_, &bare_}) {
    for (auto slot = slots->begin(); slot != slots->end() && n > 0; ++slot, --n) {
      chosen.push_back(*slot);
    }
  }
  for (int64_t slot = end_slot(); n > 0; ++slot, --n) chosen.push_back(static_cast<uint32_t>(slot));
  return chosen;
}

Result<std::vector<uint32_t>> BlockPool::take(int64_t n, BlockUse use) {
  if (!has_slots(0, n)) {
    return Status(Code::over_budget,
                  "the address space of a KV pool ends at " + format_bytes(options_.address_space) +
                      ", set when it was made; start again with a larger KV budget");
  }
  const std::vector<uint32_t> taken = choose(n);
  std::vector<int64_t> new_extents;
  for (const uint32_t slot : taken) {
    const Range range = extents_of(slot);
    for (int64_t e = range.begin; e < range.end; ++e) {
      if (is_committed(e) || (!new_extents.empty() && new_extents.back() >= e)) continue;
      new_extents.push_back(e);
    }
  }
  Result<Reservation> room =
      budget_.reserve({static_cast<int64_t>(new_extents.size()) * extent_}, Tag::committed_free);
  if (!room) return room.error();
  if (Status s = commit_extents(new_extents); !s.ok()) return s;

  free_bytes_.merge(std::move(*room));
  Slot taken_slot{.references = 1};
  taken_slot.is_headroom = use == BlockUse::headroom;
  taken_slot.is_staging = use == BlockUse::staging_in;
  taken_slot.leases = taken_slot.is_staging ? 1 : 0;
  bytes_of(taken_slot).merge(free_bytes_.split({n * block_bytes_}));
  for (const uint32_t slot : taken) {
    const Range range = extents_of(slot);
    if (static_cast<size_t>(range.end) > blocks_in_extent_.size()) {
      blocks_in_extent_.resize(static_cast<size_t>(range.end));
    }
    for (int64_t e = range.begin; e < range.end; ++e) {
      ++blocks_in_extent_[static_cast<size_t>(e)];
      spares_.erase(e);
    }
    for (int64_t s = end_slot(); s <= slot; ++s) bare_.insert(static_cast<uint32_t>(s));
    if (slot >= slots_.size()) slots_.resize(slot + size_t{1});
    ready_.erase(slot);
    bare_.erase(slot);
    slots_[slot] = taken_slot;
  }
  for (const int64_t e : new_extents) sort_slots(e);
  for (const uint32_t slot : taken) {
    if (options_.poison) std::memset(memory(slot), 0xff, static_cast<size_t>(block_bytes_));
    for (KvObserver* o : observers_) o->on_block_taken(static_cast<int>(group_.id), slot);
  }
  return taken;
}

void BlockPool::sort_slots(int64_t extent) {
  const Range range = slots_of(extent);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const uint32_t slot = static_cast<uint32_t>(i);
    const bool is_ready = is_on_committed(i);
    if (i >= end_slot()) {
      if (!is_ready) continue;  // beyond the end every slot is bare
      for (int64_t s = end_slot(); s < i; ++s) bare_.insert(static_cast<uint32_t>(s));
      slots_.resize(slot + size_t{1});
    }
    if (slots_[slot].references > 0) continue;
    (is_ready ? ready_ : bare_).insert(slot);
    (is_ready ? bare_ : ready_).erase(slot);
  }
  while (!bare_.empty() && *bare_.rbegin() + size_t{1} == slots_.size()) {
    bare_.erase(std::prev(bare_.end()));
    slots_.pop_back();
  }
}

Reservation& BlockPool::bytes_of(const Slot& slot) {
  if (slot.is_headroom) return headroom_;
  if (slot.is_staging) return staging_in_;
  if (slot.tables() > 0) return live_;
  return slot.leases > 0 ? staging_out_ : kept_;
}

template <typename Edit>
void BlockPool::change(uint32_t slot, Edit edit) {
  Slot& s = slots_[slot];
  Reservation& before = bytes_of(s);
  edit(s);
  Reservation& after = bytes_of(s);
  if (&after != &before) after.merge(before.split({block_bytes_}));
}

void BlockPool::settle(uint32_t slot) {
  change(slot, [](Slot& s) { s.is_headroom = false; });
}

void BlockPool::share(uint32_t slot) {
  WEIR_CHECK(slots_[slot].references > 0 && slots_[slot].is_sealed);
  change(slot, [](Slot& s) { ++s.references; });
}

void BlockPool::drop(uint32_t slot) {
  WEIR_CHECK(slots_[slot].tables() > 0);
  if (slots_[slot].references == 1) return free_slot(slot);
  change(slot, [](Slot& s) { --s.references; });
}

void BlockPool::keep(uint32_t slot) {
  WEIR_CHECK(slots_[slot].references > 0 && slots_[slot].is_sealed);
  change(slot, [](Slot& s) { ++s.references, ++s.keeps; });
}

void BlockPool::unkeep(uint32_t slot) {
  WEIR_CHECK(slots_[slot].keeps > 0);
  if (slots_[slot].references == 1) return free_slot(slot);
  change(slot, [](Slot& s) { --s.references, --s.keeps; });
}

void BlockPool::lease(uint32_t slot) {
  WEIR_CHECK(slots_[slot].references > 0 && slots_[slot].is_sealed);
  change(slot, [](Slot& s) { ++s.references, ++s.leases; });
}

void BlockPool::unlease(uint32_t slot) {
  WEIR_CHECK(slots_[slot].leases > 0);
  if (slots_[slot].references == 1) return free_slot(slot);
  change(slot, [](Slot& s) { --s.references, --s.leases; });
}

void BlockPool::arrive(uint32_t slot) {
  WEIR_CHECK(slots_[slot].is_staging);
  change(slot, [](Slot& s) { s.is_staging = false, s.is_sealed = true; });
  for (KvObserver* o : observers_) o->on_block_sealed(static_cast<int>(group_.id), slot);
}

void BlockPool::seal(uint32_t slot) {
  Slot& s = slots_[slot];
  WEIR_CHECK(s.references == 1 && s.tables() == 1 && !s.is_headroom);
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
  free_bytes_.merge(bytes_of(s).split({block_bytes_}));
  s = {};
  ready_.insert(slot);
  const Range range = extents_of(slot);
  for (int64_t e = range.begin; e < range.end; ++e) {
    if (--blocks_in_extent_[static_cast<size_t>(e)] > 0) continue;
    if (static_cast<int64_t>(spares_.size()) < options_.spare_extents) {
      spares_.insert(e);
    } else {
      give_back(e);
    }
  }
  for (KvObserver* o : observers_) o->on_block_freed(static_cast<int>(group_.id), slot);
}

void BlockPool::give_back(int64_t extent) {
  // Memory first, then the bytes: another thread may take them at once.
  memory_.decommit(base_ + extent * extent_, {extent_});
  free_bytes_.split({extent_});
  sort_slots(extent);
}

bool BlockPool::release_spares() {
  if (spares_.empty()) return false;
  for (const int64_t extent : std::exchange(spares_, {})) give_back(extent);
  return true;
}

void BlockPool::check_invariants() const {
  int64_t live = 0, kept = 0, headroom = 0, staging_in = 0, staging_out = 0;
  std::vector<int32_t> in_extent(blocks_in_extent_.size());
  for (int64_t slot = 0; slot < end_slot(); ++slot) {
    const Slot& s = slots_[static_cast<size_t>(slot)];
    const uint32_t id = static_cast<uint32_t>(slot);
    WEIR_CHECK(ready_.contains(id) == (s.references == 0 && is_on_committed(slot)));
    WEIR_CHECK(bare_.contains(id) == (s.references == 0 && !is_on_committed(slot)));
    if (s.references == 0) {
      WEIR_CHECK(!s.is_sealed && !s.is_headroom && !s.is_staging);
      WEIR_CHECK(s.keeps == 0 && s.leases == 0);
      continue;
    }
    WEIR_CHECK(s.is_sealed || s.references == 1);
    WEIR_CHECK(!(s.is_sealed && s.is_headroom));
    WEIR_CHECK(s.keeps + s.leases <= s.references && (s.is_sealed || s.keeps == 0));
    WEIR_CHECK(!s.is_staging || (!s.is_sealed && s.leases == 1));
    WEIR_CHECK(s.is_sealed || s.is_staging || s.leases == 0);
    (s.is_headroom    ? headroom
     : s.is_staging   ? staging_in
     : s.tables() > 0 ? live
     : s.leases > 0   ? staging_out
                      : kept) += block_bytes_;
    const Range range = extents_of(slot);
    for (int64_t e = range.begin; e < range.end; ++e) ++in_extent[static_cast<size_t>(e)];
  }
  WEIR_CHECK(slots_.empty() || !bare_.contains(static_cast<uint32_t>(end_slot() - 1)));
  WEIR_CHECK(end_slot() == max_slots_ || !is_on_committed(end_slot()));
  WEIR_CHECK(static_cast<int64_t>(ready_.size() + bare_.size()) <= end_slot());
  WEIR_CHECK(in_extent == blocks_in_extent_);
  WEIR_CHECK(static_cast<int64_t>(spares_.size()) <= options_.spare_extents);
  for (const int64_t e : spares_) WEIR_CHECK(in_extent.at(static_cast<size_t>(e)) == 0);
  const int64_t used =
      std::count_if(in_extent.begin(), in_extent.end(), [](int32_t n) { return n > 0; });
  const int64_t committed = extent_ * (used + static_cast<int64_t>(spares_.size()));
  WEIR_CHECK(live_.size().v == live && headroom_.size().v == headroom);
  WEIR_CHECK(kept_.size().v == kept);
  WEIR_CHECK(staging_in_.size().v == staging_in && staging_out_.size().v == staging_out);
  WEIR_CHECK(free_bytes_.size().v == committed - live - kept - headroom - staging_in - staging_out);
}

}  // namespace weir

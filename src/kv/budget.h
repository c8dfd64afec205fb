// kv/: the KV store. Block pools, block tables, sequences, forks, steps as transactions, all under
// one byte budget. Owned by one thread; knows no model and no kernel.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"

namespace weir {

// What a reserved byte is for. Their sum is the budget's use.
enum class Tag : uint8_t {
  live_global,     // blocks of global groups that a sequence holds
  live_local,      // blocks of local groups that a sequence holds
  restart,         // blocks that only restart points keep
  idle,            // blocks that only idle conversations keep
  step_headroom,   // local blocks of the step being computed
  staging_in,      // blocks on their way from a tier
  staging_out,     // blocks on their way to a tier
  tier_memory,     // buffers and caches of the tiers
  metadata,        // tables, index nodes
  committed_free,  // memory that pools keep committed without a block in it
};
constexpr int kTagCount = 10;
const char* tag_name(Tag tag);

class Budget;

// Bytes taken from a budget; gives them back when destroyed. Move-only.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  Bytes size() const { return size_; }
  Tag tag() const { return tag_; }
  // Takes `part` (at most size()) out of this reservation into one of its own, same tag.
  Reservation split(Bytes part);
  // Adds `other` of the same budget, retagged to this tag.
  void merge(Reservation other);
  // Same bytes, other purpose.
  void retag(Tag to);

 private:
  friend class Budget;
  Reservation(Budget* budget, Bytes size, Tag tag) : budget_(budget), size_(size), tag_(tag) {}
  Budget* budget_ = nullptr;
  Bytes size_;
  Tag tag_ = Tag::metadata;
};

// One hard limit over all KV memory in RAM. used() never passes limit(), not even between two
// lines: reserve is compare-and-swap. Any thread may reserve and release.
class Budget {
 public:
  explicit Budget(Bytes limit) : limit_(limit.v) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // Errors: over_budget, naming the need, what is free and the limit. Never waits.
  Result<Reservation> reserve(Bytes need, Tag tag);
  bool would_fit(Bytes need) const;
  // A reservation of nothing, to merge others into.
  Reservation open(Tag tag) { return Reservation(this, {}, tag); }

  Bytes limit() const { return {limit_.load()}; }
  // May be lowered below used(): nothing is taken away, but nothing more is given until it fits.
  void set_limit(Bytes limit) { limit_.store(limit.v); }
  Bytes used() const { return {used_.load()}; }
  Bytes used(Tag tag) const { return {tags_[static_cast<size_t>(tag)].load()}; }
  Bytes peak() const { return {peak_.load()}; }
  void reset_peak() { peak_.store(used_.load()); }

  // Tests: refuses the reservation after `passes` more that succeed, once. Negative: never.
  void refuse_after(int64_t passes) { refuse_after_.store(passes); }
  bool will_refuse() const { return refuse_after_.load() >= 0; }

 private:
  friend class Reservation;
  void release(Bytes size, Tag tag);
  void move_tag(Bytes size, Tag from, Tag to);

  std::atomic<int64_t> limit_;
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> peak_{0};
  std::array<std::atomic<int64_t>, kTagCount> tags_{};
  std::atomic<int64_t> refuse_after_{-1};
};

}  // namespace weir

// Hooks for a program that embeds weir's KV store and keeps its own rules. Both interfaces are
// called on the thread that owns the store, between the store's own state changes, and must not
// call back into it.
#pragma once

#include <cstdint>
#include <span>

namespace weir {

enum class SeqId : uint32_t {};

// A separate world of prefixes: nothing is shared between two of them.
enum class NamespaceId : uint32_t {};

// What an eviction could remove, as one unit.
struct EvictionCandidate {
  enum class Kind : uint8_t {
    sequence,  // an evictable sequence, with all it holds
    restart,   // the local blocks of a restart point inside a chain; its global blocks stay
    tail,      // the end of a chain: its restart point, and the blocks that are worth nothing then
  };
  Kind kind = Kind::sequence;
  SeqId seq{};                 // of a sequence
  NamespaceId name_space{};    // of the others
  int64_t tokens = 0;          // where the unit ends
  int64_t unique_bytes = 0;    // bytes that only this unit keeps: what evicting it frees
  int64_t rebuild_tokens = 0;  // what a return to its end would have to read more
  uint64_t last_use = 0;       // a counter of the store, larger is later
  uint64_t age = 0;            // uses of the store since
  double return_rate = 0;      // returns to expect per use of the store, as far as it has seen any
  bool is_active = false;      // on the path of a running sequence
  bool is_pinned = false;
};

// Chooses what gives way when a reservation does not fit.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // Index of the candidate to evict next, or -1 to refuse the reservation instead.
  // `candidates` is not empty and in order of creation; `bytes_missing` > 0.
  virtual int choose(std::span<const EvictionCandidate> candidates, int64_t bytes_missing) = 0;
};

// Told what happens to blocks and sequences. Every method has an empty default.
class KvObserver {
 public:
  virtual ~KvObserver() = default;
  virtual void on_block_taken(int group, uint32_t block) { (void)group, (void)block; }
  virtual void on_block_sealed(int group, uint32_t block) { (void)group, (void)block; }
  virtual void on_block_freed(int group, uint32_t block) { (void)group, (void)block; }
  virtual void on_step_committed(int64_t tokens) { (void)tokens; }
  virtual void on_step_aborted() {}
  virtual void on_evicted(const EvictionCandidate& unit) { (void)unit; }
};

}  // namespace weir

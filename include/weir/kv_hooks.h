// Hooks for a program that embeds weir's KV store and keeps its own rules. Both interfaces are
// called on the thread that owns the store, between the store's own state changes, and must not
// call back into it.
#pragma once

#include <cstdint>
#include <span>

namespace weir {

enum class SeqId : uint32_t {};

// Told what happens to blocks and sequences. Every method has an empty default.
class KvObserver {
 public:
  virtual ~KvObserver() = default;
  virtual void on_block_taken(int group, uint32_t block) { (void)group, (void)block; }
  virtual void on_block_sealed(int group, uint32_t block) { (void)group, (void)block; }
  virtual void on_block_freed(int group, uint32_t block) { (void)group, (void)block; }
  virtual void on_step_committed(int64_t tokens) { (void)tokens; }
  virtual void on_step_aborted() {}
  virtual void on_evicted(SeqId seq, int64_t bytes_freed) { (void)seq, (void)bytes_freed; }
};

// What an eviction could remove: a sequence that nobody decodes on.
struct EvictionCandidate {
  SeqId seq{};
  int64_t tokens = 0;
  int64_t unique_bytes = 0;  // bytes that only this sequence keeps: what evicting it frees
  uint64_t last_use = 0;     // a counter of the store, larger is later
};

// Chooses what gives way when a reservation does not fit.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // Index of the candidate to evict next, or -1 to refuse the reservation instead.
  // `candidates` is not empty and in order of creation; `bytes_missing` > 0.
  virtual int choose(std::span<const EvictionCandidate> candidates, int64_t bytes_missing) = 0;
};

}  // namespace weir

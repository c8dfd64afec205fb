#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/kv_device.h"

namespace weir {

// The query rows that pass over one KV head's keys together: `n_new` consecutive new tokens of one
// sequence, times the query heads of the KV head. Row t * heads + g is head g of token t.
struct AttendTile {
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int64_t first_new = 0;  // index of its first token among the sequence's new ones
  int32_t n_new = 0;
  int64_t first_part = 0;  // parts (of kPartRows rows) that some row of the tile reads
  int32_t n_parts = 0;
  int64_t partials = -1;  // where its partial results start in the workspace; -1: not split

  bool is_split() const { return partials >= 0; }
};

// What a thread takes at a time: all parts of a tile, in order, or one part of a split one.
struct AttendItem {
  int32_t tile = 0;
  int32_t part = -1;  // index among the tile's parts; -1: all
};

// How one attend call is divided among threads. Items are handed out by a counter; a tile that is
// long compared with the whole is split by parts, and whoever completes its last part merges them
// in index order. How it is divided never changes a bit of the result.
//
// The last thread to leave makes it ready for the next call, so that one AttendWork serves all
// layers of a step that read the same rows with the same heads, one after the other.
class AttendWork {
 public:
  enum class Split : uint8_t { automatic, never, always };

  // Plans for a team of `n_threads`. Not while a call is under way.
  void plan(const HeadShape& shape, std::span<const SequenceRows> sequences, int n_threads,
            Split split = Split::automatic);

  // Floats of workspace that a call needs; its contents between calls do not matter.
  int64_t workspace_floats() const { return partial_floats_ + n_threads_ * thread_floats_; }
  void set_workspace(float* workspace) { workspace_ = workspace; }  // 64-byte aligned

  // --- called by the kernels ------------------------------------------------------------------
  int planned_threads() const { return n_threads_; }
  int64_t items() const { return static_cast<int64_t>(items_.size()); }
  const AttendTile& tile(int32_t index) const { return tiles_[index]; }
  int32_t max_tile_rows() const { return max_tile_rows_; }
  // The next item, or null when all are taken.
  const AttendItem* take();
  // Says that one part of a split tile is in the workspace. True for the last one: every part is
  // then visible to the caller.
  bool complete_part(int32_t tile);
  // Called once by each of `n_threads` threads when take() gave null.
  void leave(int n_threads);

  // Partial results of a split tile's part: floats of one part, and where they start.
  int64_t part_floats(const AttendTile& tile) const;
  float* partial(const AttendTile& tile, int32_t part) const {
    return workspace_ + tile.partials + part * part_floats(tile);
  }
  // A thread's own memory for scores and sums.
  float* thread_memory(int thread) const {
    return workspace_ + partial_floats_ + thread * thread_floats_;
  }

 private:
  void add_tiles(std::span<const SequenceRows> sequences, int n_threads);
  void split_tiles(Split split, std::span<const SequenceRows> sequences, int n_threads);
  void hand_out_order(std::span<const int64_t> costs);

  HeadShape shape_;
  int n_threads_ = 0;
  int32_t max_tile_rows_ = 0;
  int64_t partial_floats_ = 0, thread_floats_ = 0;
  float* workspace_ = nullptr;
  std::vector<AttendTile> tiles_;
  std::vector<AttendItem> items_;
  std::unique_ptr<std::atomic<int32_t>[]> open_parts_;  // per tile, parts not yet complete
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int32_t> left_{0};
};

}  // namespace weir

#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace weir {

// The blocks of one sequence in one group, in row order. A local table starts at the window: blocks
// before it are gone. Holds slots of the group's pool, but counts no references: who puts a block
// in or takes it out also tells the pool.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&&) = default;
  BlockTable& operator=(BlockTable&&) = default;

  int64_t first_block() const { return first_block_; }
  int64_t end_block() const { return first_block_ + size(); }
  int64_t size() const { return static_cast<int64_t>(slots_.size()); }
  bool empty() const { return slots_.empty(); }
  bool holds(int64_t block) const { return block >= first_block_ && block < end_block(); }
  const std::vector<uint32_t>& slots() const { return slots_; }

  uint32_t at(int64_t block) const {
    WEIR_CHECK(holds(block));
    return slots_[static_cast<size_t>(block - first_block_)];
  }

  // The first row with content. Inside the first block once rows were moved into the middle of it,
  // else that block's first row.
  int64_t first_row(int64_t block_tokens) const {
    return std::max(first_row_, first_block_ * block_tokens);
  }
  void set_first_row(int64_t row) { first_row_ = row; }

  void push_back(uint32_t slot) { slots_.push_back(slot); }
  uint32_t pop_back() {
    WEIR_CHECK(!empty());
    const uint32_t slot = slots_.back();
    slots_.pop_back();
    return slot;
  }
  uint32_t pop_front() {
    WEIR_CHECK(!empty());
    const uint32_t slot = slots_.front();
    slots_.erase(slots_.begin());
    ++first_block_;
    return slot;
  }
  uint32_t replace(int64_t block, uint32_t slot) {
    WEIR_CHECK(holds(block));
    return std::exchange(slots_[static_cast<size_t>(block - first_block_)], slot);
  }
  // Says where the next block goes. Only while the table is empty.
  void start_at(int64_t block) {
    WEIR_CHECK(empty());
    first_block_ = block;
    first_row_ = 0;
  }

 private:
  int64_t first_block_ = 0;
  int64_t first_row_ = 0;
  std::vector<uint32_t> slots_;
};

}  // namespace weir

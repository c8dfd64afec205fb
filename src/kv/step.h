#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "geometry/kv_layout.h"
#include "weir/kv_hooks.h"

namespace weir {

// Where a block is while a step runs. Rows of a step that no later query can read are not stored:
// they sit in scratch that each layer of the group uses in turn, block `scratch` of it.
struct BlockAddress {
  std::byte* memory = nullptr;  // start of the block (all layers of its group), or null
  int32_t scratch = -1;         // number of the scratch block when memory is null
};

// What a step reads and writes of one sequence in one group. Rows are storage indices; row ==
// token position unless the sequence was shifted (then `first_visible_row` says what is read).
struct StepTable {
  int64_t first_row = 0;             // row of blocks[0], a multiple of the group's block_tokens
  int64_t n_past = 0;                // rows committed before the step
  int64_t n_new = 0;                 // rows that the step adds, at n_past ...
  std::vector<BlockAddress> blocks;  // in row order, up to row n_past + n_new - 1
  std::vector<int64_t> first_visible_row;  // one per new row, or empty: by the group's retention
  bool is_stored = false;  // the new rows are there already: they are read and must not be written
};

struct StepItem {
  SeqId seq{};
  int64_t n_tokens = 0;  // > 0; a sequence appears at most once in a step
  // Tokens that are certain to be accepted if any are; negative: all of them. Rows are stored from
  // the window before this end on, so a step with drafts says 1 (its first token is no draft).
  int64_t min_accept = -1;
  // The n_tokens tokens, for a named sequence; read by plan_step only.
  std::span<const int32_t> tokens = {};

  int64_t sure() const { return min_accept < 0 ? n_tokens : min_accept; }
};

class KvCache;

// A step is a transaction. Made by KvCache::plan_step, which has
// reserved the bytes and taken the blocks; kernels then write only new rows; commit makes them part
// of the sequences. A step that is destroyed without commit is aborted: nothing has changed. Engine
// thread only; must not outlive its cache.
class Step {
 public:
  Step(Step&&) noexcept;
  Step& operator=(Step&&) = delete;
  ~Step();

  std::span<const StepItem> items() const { return items_; }
  // Table of item `item` (in the order given to plan_step) in group `group`. Valid until the end
  // of the step.
  const StepTable& table(size_t item, size_t group) const { return tables_[item][group]; }
  // Scratch blocks that the group's tables refer to: numbered 0 .. n-1 over all items.
  int scratch_blocks(size_t group) const { return scratch_blocks_[group]; }
  // Positions of the new tokens of `item`.
  std::vector<int64_t> positions(size_t item) const;

  // Advances item i by accepted[i] <= n_tokens tokens (fewer when drafts were rejected), seals full
  // blocks, frees what left the window by what was accepted. Ends the step. accepted[i] is 0 or at
  // least the item's min_accept: in between, the window before the new end was not stored.
  void commit(std::span<const int64_t> accepted);
  void commit();  // all tokens accepted
  void abort();   // drops the new blocks. Ends the step.

 private:
  friend class KvCache;
  Step() = default;
  KvCache* cache_ = nullptr;  // null once ended
  std::vector<StepItem> items_;
  std::vector<std::vector<StepTable>> tables_;  // [item][group]
  std::vector<int> scratch_blocks_;             // [group]
};

}  // namespace weir

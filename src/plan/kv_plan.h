// plan/: what a model will take before it is loaded. The engine's own arithmetic (window, blocks,
// pools) turned into totals, their inverse, tables and charts.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "geometry/kv_geometry.h"
#include "geometry/kv_layout.h"

namespace weir {

// What is planned: sequences that each grow to `tokens`, computed in steps of at most `ubatch`
// tokens altogether.
struct PlanLoad {
  int64_t tokens = 0;
  int64_t n_sequences = 1;
  int64_t ubatch = 512;
};

struct GroupPlan {
  Retention retention;
  Bytes block_bytes;
  Bytes extent;             // unit in which the pool commits memory
  int64_t held_blocks = 0;  // of all sequences at `tokens`, between two steps
  int64_t peak_blocks = 0;  // most that are taken at once on the way there
  Bytes held() const { return held_blocks * block_bytes; }
  Bytes headroom() const { return (peak_blocks - held_blocks) * block_bytes; }
  Bytes committed() const { return {round_up((peak_blocks * block_bytes).v, extent.v)}; }
  Bytes pool_rounding() const { return committed() - peak_blocks * block_bytes; }
};

// The sum: resident + headroom + pool_rounding = total.
struct KvPlan {
  PlanLoad load;
  std::vector<GroupPlan> groups;  // in the order of the layout
  Bytes global;         // blocks of global groups at `tokens`: what KvUsage reports, to the byte
  Bytes local;          // blocks of local groups
  Bytes headroom;       // for the step under way, and for windows that do not end on a block
  Bytes pool_rounding;  // memory that the pools commit beyond their blocks
  Bytes resident() const { return global + local; }
  Bytes total() const { return resident() + headroom + pool_rounding; }
};

// Plans loads for one model and format. total() never falls when tokens or sequences grow, so
// every question about a budget has one answer.
class KvPlanner {
 public:
  // `max_context` of the geometry chooses the pools' extents, as in KvCache. Errors: invalid_input
  // if a type cannot store a layer's rows.
  static Result<KvPlanner> create(const KvGeometry& geometry, const KvFormat& format);

  const KvLayout& layout() const { return layout_; }

  // 0 <= tokens <= kMaxTokens, 1 <= n_sequences <= kMaxSequences, 1 <= ubatch <= kMaxTokens.
  KvPlan plan(const PlanLoad& load) const;

  // Largest number of tokens (at most kMaxTokens) whose total fits `budget`, with load's sequences
  // and ubatch; -1 if not even 0 tokens do.
  int64_t most_tokens(Bytes budget, PlanLoad load) const;
  // Largest number of sequences (at most kMaxSequences) of load.tokens tokens each that fit.
  int64_t most_sequences(Bytes budget, PlanLoad load) const;

 private:
  KvPlanner(KvLayout layout, int64_t max_context)
      : layout_(std::move(layout)), max_context_(max_context) {}
  KvLayout layout_;
  int64_t max_context_;
};

// Most blocks of a group that one sequence takes at once while it grows to n tokens in steps of at
// most c tokens: the largest held_blocks(n') + step_new_blocks(n', c') on any way there.
int64_t peak_blocks(Retention r, int64_t n, int64_t c, int64_t B);

// The block length for a model. Rounding to blocks costs up to B-1 rows of every global layer and
// what a window's blocks hold beyond it. The least is wasted with 16; 32, then 64 are preferred
// (longer runs of memory for the kernels, fewer blocks to account for) where, for a conversation
// of 4096 tokens, that costs at most 1.5 % of its KV more.
int choose_block_tokens(const KvGeometry& geometry);

}  // namespace weir

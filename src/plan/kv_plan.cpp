#include "plan/kv_plan.h"

#include <algorithm>

#include "base/check.h"
#include "geometry/geometry_draft.h"
#include "geometry/growth.h"
#include "geometry/window.h"
#include "kv/pool_extent.h"

namespace weir {
namespace {

int64_t blocks_in_step(Retention r, int64_t n, int64_t c, int64_t B) {
  return held_blocks(r, n, B) + step_new_blocks(r, n, c, B);
}

// Largest blocks_in_step of a step after n' = from .. to (within 0 .. n-1) that stays within n
// tokens. For a fixed n' the blocks grow with c until the step's end leaves the window of n'
// behind; from there they repeat with the window's alignment. So the longest step and the steps
// around those ends are enough.
int64_t peak_between(Retention r, int64_t from, int64_t to, int64_t n, int64_t c, int64_t B) {
  int64_t peak = 0;
  for (int64_t at = std::max<int64_t>(0, from); at <= std::min(to, n - 1); ++at) {
    const int64_t longest = std::min(c, n - at);
    peak = std::max(peak, blocks_in_step(r, at, longest, B));
    const auto try_around = [&](int64_t end) {
      for (int64_t e = end - at - 1; e <= end - at + 2 * B; ++e) {
        if (e >= 1 && e < longest) peak = std::max(peak, blocks_in_step(r, at, e, B));
      }
    };
    if (r.kind == LayerKind::sliding && longest >= r.window + B - 1) {
      try_around(at + r.window + B);
    } else if (r.kind == LayerKind::chunked && longest > r.window - at % r.window) {
      const int64_t chunks = 2 + (r.window % B == 0 ? 0 : B);
      for (int64_t k = 1; k <= chunks; ++k) try_around((at / r.window + k) * r.window - 1);
    }
  }
  return peak;
}

// Blocks beyond those held that a step of c tokens over s sequences takes at most: each sequence
// with a token in it may begin a block, and every B further tokens another.
int64_t most_new_blocks(int64_t s, int64_t c, int64_t B) {
  const int64_t beginning = std::min(s, c);
  return beginning + (c - beginning) / B;
}

int64_t peak_of_sequences(Retention r, const PlanLoad& load, int64_t B) {
  const int64_t s = load.n_sequences;
  const int64_t one = peak_blocks(r, load.tokens, load.ubatch, B);
  if (r.kind == LayerKind::global || s == 1) return s * one;
  // Steps are shared: what one sequence takes in a long step the others cannot take in the same.
  // Even a window of one token keeps its open block.
  const int64_t held =
      std::max(max_held_blocks(r, load.tokens, B), std::min<int64_t>(1, load.tokens));
  return std::min(s * one, s * held + most_new_blocks(s, load.ubatch, B));
}

// Largest x in [low, high] for which fits(x), which is true up to some x and false from there on;
// low - 1 if there is none.
template <typename Fits>
int64_t last_that_fits(int64_t low, int64_t high, Fits fits) {
  while (low <= high) {
    const int64_t middle = low + (high - low) / 2;
    if (fits(middle)) {
      low = middle + 1;
    } else {
      high = middle - 1;
    }
  }
  return high;
}

}  // namespace

int64_t peak_blocks(Retention r, int64_t n, int64_t c, int64_t B) {
  if (r.kind == LayerKind::global) return ceil_div(n, B);
  const int64_t w = r.window;
  if (n < w) return ceil_div(n, B);  // nothing has left the window yet
  // Before the first window is full, blocks only grow; after it they repeat with the alignment of
  // the window to blocks. Where n cuts steps short, the last long ones count too.
  const bool is_cut = n < w + c + 3 * B;
  if (!is_cut && r.kind == LayerKind::sliding) return peak_between(r, w - 1, w + B - 2, n, c, B);
  int64_t peak = peak_between(r, w - 1 - 2 * B, w + B, n, c, B);
  if (is_cut) {
    peak = std::max(peak, peak_between(r, n - c - 2 * B, n - c + 2 * B, n, c, B));
    peak = std::max(peak, peak_between(r, n - 2 * B, n - 1, n, c, B));
  }
  if (r.kind == LayerKind::chunked && w % B != 0) {
    for (int64_t k = 2; k <= B + 1 && (k - 1) * w < n; ++k) {
      peak = std::max(peak, peak_between(r, k * w - 1 - 2 * B, k * w + B, n, c, B));
    }
  }
  return peak;
}

Result<KvPlanner> KvPlanner::create(const KvGeometry& geometry, const KvFormat& format) {
  Result<KvLayout> layout = make_layout(geometry, format);
  if (!layout) return layout.error();
  return KvPlanner(std::move(*layout), geometry.max_context);
}

KvPlan KvPlanner::plan(const PlanLoad& load) const {
  WEIR_CHECK(load.tokens >= 0 && load.tokens <= kMaxTokens);
  WEIR_CHECK(load.n_sequences >= 1 && load.n_sequences <= kMaxSequences);
  WEIR_CHECK(load.ubatch >= 1 && load.ubatch <= kMaxTokens);
  KvPlan plan{
      .load = load, .groups = {}, .global = {}, .local = {}, .headroom = {}, .pool_rounding = {}};
  for (const KvGroup& group : layout_.groups) {
    const int64_t B = group.block_tokens;
    GroupPlan g{.retention = group.retention,
                .block_bytes = group.block_bytes,
                .extent = pool_extent(group, max_context_)};
    g.held_blocks = load.n_sequences * held_blocks(group.retention, load.tokens, B);
    g.peak_blocks = peak_of_sequences(group.retention, load, B);
    (layout_.is_local(group) ? plan.local : plan.global) += g.held();
    plan.headroom += g.headroom();
    plan.pool_rounding += g.pool_rounding();
    plan.groups.push_back(g);
  }
  return plan;
}

int64_t KvPlanner::most_tokens(Bytes budget, PlanLoad load) const {
  return last_that_fits(0, kMaxTokens, [&](int64_t n) {
    load.tokens = n;
    return plan(load).total() <= budget;
  });
}

int64_t KvPlanner::most_sequences(Bytes budget, PlanLoad load) const {
  return last_that_fits(1, kMaxSequences, [&](int64_t s) {
    load.n_sequences = s;
    return plan(load).total() <= budget;
  });
}

int choose_block_tokens(const KvGeometry& geometry) {
  constexpr int64_t kTokens = 4096;
  constexpr double kNearTie = 0.015;
  // One element a byte: the choice does not depend on the types.
  const auto rounding = [&](int64_t B) {
    int64_t wasted = 0, resident = 0;
    for (const KvLayer& layer : geometry.layers) {
      if (!layer.owns_kv()) continue;
      const int64_t row = layer.n_kv_heads * (int64_t{layer.k_dim} + layer.v_dim);
      const Retention r = layer.retention;
      const bool is_global = r.kind == LayerKind::global;
      const int64_t exact = is_global ? kTokens : std::min(kTokens, r.window);
      const int64_t most = is_global ? kTokens + B - 1 : B * max_held_blocks(r, kTokens, B);
      wasted += std::max<int64_t>(0, most - exact) * row;
      resident += exact * row;
    }
    return static_cast<double>(wasted) / static_cast<double>(std::max<int64_t>(1, resident));
  };
  const double least = rounding(16);
  for (const int B : {64, 32}) {
    if (rounding(B) <= least + kNearTie) return B;
  }
  return 16;
}

}  // namespace weir

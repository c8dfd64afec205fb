#include "plan/rewind_plan.h"

#include <algorithm>

#include "geometry/replay.h"
#include "geometry/window.h"

namespace weir {
namespace {

bool has_local_groups(const KvLayout& layout) {
  return std::any_of(layout.groups.begin(), layout.groups.end(),
                     [&](const KvGroup& group) { return layout.is_local(group); });
}

// Most tokens that a replay reads, for restarts up to `tokens`.
int64_t longest_replay(const KvLayout& layout, int64_t tokens) {
  int64_t longest = 0;
  const int64_t B = layout.format.block_tokens;
  // Replays grow with the position until they are as long as the layers' windows together, and
  // then only vary with how windows lie in blocks and chunks.
  int64_t period = B;
  for (const KvGroup& group : layout.groups) period = std::max(period, group.retention.window);
  const int64_t last = tokens - tokens % B;
  for (int64_t p = last; p > std::max<int64_t>(0, last - 2 * period); p -= B)
    longest = std::max(longest, p - replay_start(layout, p));
  return longest;
}

// Blocks of a local group that restart points keep and the next token does not read.
int64_t kept_blocks(const KvGroup& group, int64_t tokens, int64_t distance) {
  const int64_t B = group.block_tokens;
  const int64_t live =
      std::min(first_needed_block(group.retention, tokens, B), ceil_div(tokens, B));
  int64_t kept = 0, counted = 0;  // blocks before `counted` are done with
  const auto add = [&](int64_t p) {
    const int64_t begin = std::max(counted, first_needed_block(group.retention, p, B));
    const int64_t end = std::min(p / B, live);
    if (end > begin) kept += end - begin;
    counted = std::max(counted, p / B);
  };
  if (distance > 0)
    for (int64_t p = distance; p <= tokens; p += distance) add(p);
  add(tokens - tokens % B);
  return kept;
}

}  // namespace

int64_t restart_distance(const KvLayout& layout, int64_t bound) {
  if (bound <= 0 || !has_local_groups(layout)) return 0;
  const int64_t B = layout.format.block_tokens;
  constexpr int64_t kFarAway = int64_t{1} << 20;
  if (longest_replay(layout, kFarAway) <= bound) return 0;
  return std::max(B, bound - bound % B);
}

RewindPlan plan_rewind(const KvLayout& layout, int64_t tokens, int64_t bound) {
  RewindPlan plan;
  const int64_t B = layout.format.block_tokens;
  if (!has_local_groups(layout)) {
    plan.bound = std::min(tokens, B);
    return plan;
  }
  plan.distance = restart_distance(layout, bound);
  plan.healing = longest_replay(layout, tokens);
  const int64_t apart = plan.distance > 0 ? plan.distance : tokens;
  // The last block of a prefix is read again in any case.
  plan.bound = std::min(tokens, std::min(apart, plan.healing) + B);
  plan.points = (plan.distance > 0 ? tokens / plan.distance : 0) +
                (tokens >= B && (plan.distance == 0 || tokens % plan.distance >= B) ? 1 : 0);
  for (const KvGroup& group : layout.groups) {
    if (layout.is_local(group))
      plan.bytes += kept_blocks(group, tokens, plan.distance) * group.block_bytes;
  }
  return plan;
}

int64_t rewind_bound_for(const KvLayout& layout, int64_t tokens, Bytes room) {
  for (int64_t bound = 1024; bound < tokens; bound *= 2) {
    if (plan_rewind(layout, tokens, bound).bytes <= room) return bound;
  }
  return tokens <= 1024 ? 1024 : 0;
}

}  // namespace weir

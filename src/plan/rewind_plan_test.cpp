#include "plan/rewind_plan.h"

#include <gtest/gtest.h>

#include <set>

#include "geometry/builtin.h"
#include "geometry/replay.h"
#include "geometry/window.h"

namespace weir {
namespace {

KvLayout layout_of(const std::string& id, int block_tokens = 32) {
  return *make_layout(*builtin_geometry(id), KvFormat::uniform(KvType::f16, block_tokens));
}

// Blocks listed one by one.
Bytes listed(const KvLayout& layout, int64_t tokens, const RewindPlan& plan) {
  Bytes bytes;
  const int64_t B = layout.format.block_tokens;
  for (const KvGroup& group : layout.groups) {
    if (!layout.is_local(group)) continue;
    std::set<int64_t> kept;
    std::set<int64_t> points = {tokens - tokens % B};
    for (int64_t p = plan.distance; plan.distance > 0 && p <= tokens; p += plan.distance)
      points.insert(p);
    for (const int64_t p : points) {
      for (int64_t position = first_visible(group.retention, p); position < p; ++position)
        kept.insert(position / B);
    }
    for (int64_t position = first_visible(group.retention, tokens); position < tokens; ++position)
      kept.erase(position / B);
    bytes += std::ssize(kept) * group.block_bytes;
  }
  return bytes;
}

TEST(RewindPlan, BytesAreThoseOfTheBlocksListed) {
  for (const std::string id : {"gemma-3-1b", "gemma-3-27b", "gpt-oss-20b", "llama-4-scout"}) {
    const KvLayout layout = layout_of(id);
    for (const int64_t tokens : {0, 31, 500, 1024, 4096, 9001, 20000}) {
      for (const int64_t bound : {0, 40, 256, 1024, 5000}) {
        const RewindPlan plan = plan_rewind(layout, tokens, bound);
        EXPECT_EQ(plan.bytes, listed(layout, tokens, plan)) << id << " " << tokens << " " << bound;
      }
    }
  }
}

TEST(RewindPlan, WhereWindowsAreRebuiltCheaplyNoScheduleIsNeeded) {
  const KvLayout gpt_oss = layout_of("gpt-oss-20b");
  EXPECT_EQ(restart_distance(gpt_oss, 1024), 1024);
  EXPECT_EQ(restart_distance(gpt_oss, 2048), 0);
  // 12 local layers, each 127 tokens further back, and the rest of a block.
  const RewindPlan plan = plan_rewind(gpt_oss, 100'000, 2048);
  EXPECT_GE(plan.healing, 12 * 127);
  EXPECT_LE(plan.healing, 12 * 127 + 2 * 32);
  EXPECT_LE(plan.bound, 12 * 127 + 3 * 32);
  EXPECT_EQ(restart_distance(layout_of("gemma-3-27b"), 4096), 4096);
  // Without local layers every block boundary is a restart point.
  const RewindPlan global = plan_rewind(layout_of("qwen3-8b"), 5000, 1024);
  EXPECT_EQ(global.bytes.v, 0);
  EXPECT_EQ(global.healing, -1);
}

TEST(RewindPlan, TheBoundThatFitsIsTheSmallest) {
  const KvLayout layout = layout_of("gemma-3-1b");
  EXPECT_EQ(rewind_bound_for(layout, 32768, {64 * kGiB}), 1024);
  const int64_t tight = rewind_bound_for(layout, 32768, {100 * kMiB});
  EXPECT_GT(tight, 1024);
  EXPECT_LE(plan_rewind(layout, 32768, tight).bytes, Bytes{100 * kMiB});
  EXPECT_GT(plan_rewind(layout, 32768, tight / 2).bytes, Bytes{100 * kMiB});
  // Where windows are rebuilt within the bound, it costs nothing; else it may not be met at all.
  EXPECT_EQ(rewind_bound_for(layout, 32768, {kMiB}), 16384);
  EXPECT_EQ(rewind_bound_for(layout_of("gemma-3-27b"), 32768, {kMiB}), 0);
}

}  // namespace
}  // namespace weir

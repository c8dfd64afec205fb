#include "plan/kv_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "geometry/builtin.h"
#include "geometry/geometry_draft.h"
#include "geometry/growth.h"
#include "geometry/window.h"

namespace weir {
namespace {

KvPlanner planner(const std::string& id, KvType type = KvType::f16) {
  const KvGeometry g = *builtin_geometry(id);
  return *KvPlanner::create(g, KvFormat::uniform(type, choose_block_tokens(g)));
}

// The slow twin: every way of growing to n tokens.
TEST(PeakBlocks, EqualsTheLoopOverAllSteps) {
  for (const LayerKind kind : {LayerKind::global, LayerKind::sliding, LayerKind::chunked}) {
    for (int64_t w = 1; w <= 13; ++w) {
      for (int64_t B = 1; B <= 5; ++B) {
        const Retention r{kind, kind == LayerKind::global ? 0 : w};
        for (int64_t c = 1; c <= 40; c += c < 18 ? 1 : 7) {
          for (int64_t n = 0; n <= 70; ++n) {
            int64_t most = 0;
            for (int64_t at = 0; at < n; ++at) {
              for (int64_t step = 1; step <= std::min(c, n - at); ++step) {
                most = std::max(most, held_blocks(r, at, B) + step_new_blocks(r, at, step, B));
              }
            }
            ASSERT_EQ(peak_blocks(r, n, c, B), most)
                << static_cast<int>(kind) << " w " << w << " B " << B << " c " << c << " n " << n;
          }
        }
      }
    }
  }
}

// A step over several sequences never takes more than planned.
TEST(KvPlanner, SharedStepsStayWithinThePlan) {
  std::mt19937_64 random(20);
  KvLayer layer;
  layer.n_heads = layer.n_kv_heads = 1;
  layer.k_dim = layer.v_dim = 32;
  KvGeometry g;
  g.layers = {layer, layer};
  g.layers[1].index = g.layers[1].source = 1;
  for (const Retention r : {Retention{LayerKind::sliding, 70}, Retention{LayerKind::sliding, 1},
                            Retention{LayerKind::chunked, 64}, Retention{LayerKind::chunked, 50}}) {
    g.layers[1].retention = r;
    const KvPlanner p = *KvPlanner::create(g, KvFormat::uniform(KvType::f16, 16));
    for (int round = 0; round < 4000; ++round) {
      const PlanLoad load{.tokens = static_cast<int64_t>(random() % 400),
                          .n_sequences = static_cast<int64_t>(random() % 5 + 1),
                          .ubatch = static_cast<int64_t>(random() % 200 + 1)};
      const KvPlan plan = p.plan(load);
      int64_t left = load.ubatch, taken = 0;
      for (int64_t s = 0; s < load.n_sequences; ++s) {
        const int64_t n = static_cast<int64_t>(random() % static_cast<uint64_t>(load.tokens + 1));
        const int64_t most = std::min(left, load.tokens - n);
        const int64_t c =
            most > 0 ? static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1)) : 0;
        left -= c;
        taken += held_blocks(r, n, 16) + (c > 0 ? step_new_blocks(r, n, c, 16) : 0);
      }
      ASSERT_LE(taken, plan.groups[1].peak_blocks) << round;
    }
  }
}

TEST(KvPlanner, TheSumIsTheTotal) {
  for (const ModelFacts& m : builtin_models()) {
    const KvPlanner p = planner(m.id);
    for (const int64_t n : {0, 1, 4095, 4096, 8192, 100000}) {
      for (const int64_t s : {1, 3}) {
        const KvPlan plan = p.plan({.tokens = n, .n_sequences = s, .ubatch = 512});
        Bytes committed;
        for (const GroupPlan& g : plan.groups) {
          EXPECT_GE(g.peak_blocks, g.held_blocks);
          EXPECT_GE(g.headroom().v, 0);
          EXPECT_GE(g.pool_rounding().v, 0);
          EXPECT_EQ(g.committed().v % g.extent.v, 0);
          committed += g.committed();
        }
        EXPECT_EQ(plan.total(), committed) << m.id << " " << n;
      }
    }
  }
}

// Field case 21d: with one token every layer that owns KV is counted, local ones too.
TEST(KvPlanner, OneTokenCountsEveryOwningLayer) {
  for (const ModelFacts& m : builtin_models()) {
    const KvGeometry g = geometry_of(m);
    KvFormat apart;
    apart.share = false;
    const KvGrowth growth = *KvGrowth::of(g, apart);
    EXPECT_EQ(growth.resident(1), growth.uniform(1)) << m.id;
    int64_t row = 0;
    for (const KvLayer& l : g.layers)
      row += l.owns_kv() ? 2 * l.n_kv_heads * (l.k_dim + l.v_dim) : 0;
    EXPECT_EQ(growth.resident(1).v, row) << m.id;
    const KvPlanner p = planner(m.id);
    int64_t one_block = 0;
    for (const KvGroup& group : p.layout().groups) one_block += group.block_bytes.v;
    EXPECT_EQ(p.plan({.tokens = 1}).resident().v, one_block) << m.id;
  }
}

// Between steps a plan holds the window and at most one block more of each local group, and the
// rest of the last block of the global one.
TEST(KvPlanner, BlocksAreCloseToRows) {
  for (const ModelFacts& m : builtin_models()) {
    const KvGeometry g = geometry_of(m);
    const int B = choose_block_tokens(g);
    const KvPlanner p = planner(m.id);
    const KvGrowth growth = *KvGrowth::of(g, KvFormat());
    for (const int64_t n : {5000, 8192, 12345, 65536}) {
      const KvPlan plan = p.plan({.tokens = n});
      EXPECT_GE(plan.global, growth.global(n));
      EXPECT_LE(plan.global, growth.global(n + B - 1)) << m.id;
      for (const GroupPlan& group : plan.groups) {
        if (group.retention.kind != LayerKind::sliding) continue;
        EXPECT_LE(group.held_blocks * B, group.retention.window + 2 * B - 2) << m.id;
        EXPECT_GE(group.held_blocks * B, std::min(n, group.retention.window) - 1) << m.id;
      }
    }
  }
}

// Field case 22.
TEST(KvPlanner, CapacityIsTheExactInverseOfCost) {
  const uint64_t seed = 22;
  std::mt19937_64 random(seed);
  std::vector<std::pair<std::string, KvPlanner>> planners;
  for (const ModelFacts& m : builtin_models()) {
    planners.emplace_back(m.id, planner(m.id, random() % 2 ? KvType::f16 : KvType::q8_0));
  }
  for (int round = 0; round < 10000; ++round) {
    const auto& [id, p] = planners[static_cast<size_t>(round) % planners.size()];
    const Bytes budget{static_cast<int64_t>(random() % (uint64_t{1} << (20 + random() % 20)))};
    PlanLoad load{.n_sequences = static_cast<int64_t>(random() % 4 + 1),
                  .ubatch = static_cast<int64_t>(random() % 1024 + 1)};
    const auto cost = [&, &planner = p](int64_t tokens, int64_t sequences) {
      PlanLoad at = load;
      at.tokens = tokens;
      at.n_sequences = sequences;
      return planner.plan(at).total();
    };
    const int64_t n = p.most_tokens(budget, load);
    ASSERT_GE(n, 0);
    ASSERT_LE(cost(n, load.n_sequences), budget) << id << " round " << round;
    if (n < kMaxTokens) {
      ASSERT_GT(cost(n + 1, load.n_sequences), budget) << id << " round " << round;
    }
    load.tokens = static_cast<int64_t>(random() % 100000 + 1);
    const int64_t s = p.most_sequences(budget, load);
    if (s > 0) {
      ASSERT_LE(cost(load.tokens, s), budget) << id;
    }
    if (s < kMaxSequences) {
      ASSERT_GT(cost(load.tokens, s + 1), budget) << id;
    }
  }
}

TEST(KvPlanner, TheTotalNeverFalls) {
  std::mt19937_64 random(7);
  for (const ModelFacts& m : builtin_models()) {
    const KvPlanner p = planner(m.id);
    for (const int64_t ubatch : {1, 7, 512, 5000}) {
      for (const int64_t s : {1, 2, 9}) {
        Bytes last;
        int64_t n = 0;
        for (int i = 0; i < 300; ++i) {
          const Bytes total = p.plan({.tokens = n, .n_sequences = s, .ubatch = ubatch}).total();
          ASSERT_GE(total, last) << m.id << " " << n << " ubatch " << ubatch;
          last = total;
          n += random() % 3 == 0 ? 1 : static_cast<int64_t>(random() % 97);
        }
      }
    }
  }
}

TEST(ChooseBlockTokens, FollowsTheWindow) {
  const auto chosen = [](const char* id) { return choose_block_tokens(*builtin_geometry(id)); };
  EXPECT_EQ(chosen("llama-3.1-8b"), 64);     // no window: only the open block is wasted
  EXPECT_EQ(chosen("mistral-7b-v0.1"), 64);  // 65 blocks for 4096 tokens
  EXPECT_EQ(chosen("gemma-3-27b"), 32);      // 33 blocks for 1024 tokens
  EXPECT_EQ(chosen("gpt-oss-20b"), 32);      // 5 blocks for 128 tokens, but few bytes
  EXPECT_EQ(chosen("mimo-v2-flash"), 16);    // many local layers of 128 tokens
}

}  // namespace
}  // namespace weir

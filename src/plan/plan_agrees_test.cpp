// The planner and the KV store agree to the byte, for every model of the built-in list.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "geometry/builtin.h"
#include "kv/kv_cache.h"
#include "plan/kv_plan.h"

namespace weir {
namespace {

// Address space only: these tests count blocks and touch none of them.
class AddressSpace : public KvMemory {
 public:
  Result<std::byte*> reserve(Bytes size) override {
    void* at = mmap(nullptr, static_cast<size_t>(size.v), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return Status(Code::io_error, "no address space");
    return static_cast<std::byte*>(at);
  }
  void unreserve(std::byte* base, Bytes size) override {
    munmap(base, static_cast<size_t>(size.v));
  }
  Status commit(std::byte*, Bytes, bool) override { return {}; }
  void decommit(std::byte*, Bytes) override {}
};

class PlanAgrees : public testing::TestWithParam<std::string> {};

// Prompts of several windows in steps of `ubatch`, then single tokens over a block edge.
void grow_and_compare(const KvGeometry& geometry, KvType type, int64_t ubatch) {
  const KvFormat format = KvFormat::uniform(type, choose_block_tokens(geometry));
  const KvPlanner planner = *KvPlanner::create(geometry, format);
  Budget budget(Bytes{int64_t{1} << 40});
  AddressSpace memory;
  KvCacheOptions options;
  options.address_space = {int64_t{1} << 38};
  options.max_context = geometry.max_context;
  auto cache = *KvCache::create(planner.layout(), budget, memory, options);
  const SeqId seq = cache->create_sequence();

  int64_t window = 0;
  for (const KvGroup& group : planner.layout().groups)
    window = std::max(window, group.retention.window);
  const int64_t prompt = 2 * window + 3 * ubatch + 37;
  for (int64_t n = 0; n < prompt + 2 * format.block_tokens;) {
    const int64_t c = n < prompt ? std::min(ubatch, prompt - n) : 1;
    const StepItem item{.seq = seq, .n_tokens = c};
    Result<Step> step = cache->plan_step({&item, 1});
    ASSERT_TRUE(step.ok()) << step.error().message();
    step->commit();
    n += c;
    const KvPlan plan = planner.plan({.tokens = n, .n_sequences = 1, .ubatch = ubatch});
    const KvUsage usage = cache->usage();
    ASSERT_EQ(usage.global, plan.global) << n;
    ASSERT_EQ(usage.local, plan.local) << n;
    ASSERT_LE(budget.peak(), plan.total()) << n;
  }
  cache->check_invariants();
  cache->release(seq);
  EXPECT_EQ(budget.used().v, 0);
}

TEST_P(PlanAgrees, ResidentBytesArePlannedBytes) {
  const KvGeometry geometry = *builtin_geometry(GetParam());
  for (const KvType type :
       {KvType::f16, KvType::f32, KvType::q8_0, KvType::q6_0, KvType::q5_0, KvType::q4_0}) {
    for (const int64_t ubatch : {int64_t{512}, int64_t{129}}) {
      grow_and_compare(geometry, type, ubatch);
    }
  }
}

std::vector<std::string> verified_ids() {
  std::vector<std::string> ids;
  for (const ModelFacts& facts : builtin_models()) {
    if (facts.verified) ids.push_back(facts.id);
  }
  return ids;
}

INSTANTIATE_TEST_SUITE_P(EveryVerifiedModel, PlanAgrees, testing::ValuesIn(verified_ids()),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

// A prompt of 16,384 tokens on the 1B geometry in steps of 512, at its peak, against what llama.cpp
// allocates for it (f16, flash attention, one sequence): the whole context of global KV, and
// min(context, window + step) local cells rounded up to 256.
TEST(PlanAgrees, LongPromptPeaksUnderLlamaCppsAllocation) {
  const KvGeometry geometry = *builtin_geometry("gemma-3-1b");
  const KvPlanner planner =
      *KvPlanner::create(geometry, KvFormat::uniform(KvType::f16, choose_block_tokens(geometry)));
  Budget budget(Bytes{kGiB});
  AddressSpace memory;
  KvCacheOptions options;
  options.address_space = {kGiB};
  options.max_context = geometry.max_context;
  auto cache = *KvCache::create(planner.layout(), budget, memory, options);
  const SeqId seq = cache->create_sequence();
  for (int64_t n = 0; n < 16384; n += 512) {
    const StepItem item{.seq = seq, .n_tokens = 512};
    Result<Step> step = cache->plan_step({&item, 1});
    ASSERT_TRUE(step.ok());
    step->commit();
  }
  // Room for one token of reply: 16,385 cells, which llama.cpp rounds up to 16,640.
  const int64_t global_cells = 16640, local_cells = 1024;
  const Bytes llama{global_cells * 4 * kKiB + local_cells * 22 * kKiB};
  EXPECT_LT(budget.peak(), llama);
  EXPECT_LE(budget.peak().v, 16384 * 4 * kKiB + 1024 * 22 * kKiB);
}

}  // namespace
}  // namespace weir

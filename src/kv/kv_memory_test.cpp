#include "kv/kv_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "kv/kv_cache.h"
#include "kv/pool_extent.h"
#include "kv/testing/sanitizer.h"
#include "kv/testing/small_store.h"

namespace weir {
namespace {

int64_t resident_bytes() {
  long size = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file) return -1;
  if (std::fscanf(file, "%ld %ld", &size, &resident) != 2) resident = -1;
  std::fclose(file);
  return resident < 0 ? -1 : resident * sysconf(_SC_PAGESIZE);
}

// Tables of the process, and what the sanitizers or the allocator keep for them.
constexpr int64_t kConstant = kIsSanitized ? 16 * kMiB : kMiB;

TEST(CpuMemory, AddressSpaceIsAlignedAndCostsNothing) {
  const auto memory = make_cpu_memory();
  const int64_t before = resident_bytes();
  const Bytes size{64 * kGiB};
  Result<std::byte*> base = memory->reserve(size);
  ASSERT_TRUE(base.ok()) << base.error().message();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*base) % static_cast<uintptr_t>(kHugePage.v), 0u);
  EXPECT_LT(resident_bytes() - before, kConstant);
  memory->unreserve(*base, size);
}

TEST(CpuMemory, MoreThanTheAddressSpaceIsAnError) {
  const auto memory = make_cpu_memory();
  const Result<std::byte*> base = memory->reserve({int64_t{1} << 60});
  ASSERT_FALSE(base.ok());
  EXPECT_EQ(base.error().code(), Code::io_error);
}

TEST(CpuMemory, DecommittedPagesGoBackAndReadAsZero) {
  const auto memory = make_cpu_memory();
  for (const bool huge : {false, true}) {
    const Bytes size{32 * kMiB};
    std::byte* base = *memory->reserve(size);
    const int64_t before = resident_bytes();
    ASSERT_TRUE(memory->commit(base, size, huge).ok());
    std::memset(base, 1, static_cast<size_t>(size.v));
    EXPECT_NEAR(static_cast<double>(resident_bytes() - before), static_cast<double>(size.v),
                static_cast<double>(kConstant));
    memory->decommit(base, size);
    EXPECT_LT(resident_bytes() - before, kConstant);
    ASSERT_TRUE(memory->commit(base, {4096}, huge).ok());
    EXPECT_EQ(base[4095], std::byte{0});
    memory->unreserve(base, size);
  }
}

// The accounts are what the system says: memory grows by the budget's use and shrinks with it.
TEST(CpuMemory, ResidentSetFollowsTheAccounts) {
  const auto memory = make_cpu_memory();
  for (const Bytes extent : {kSmallExtent, kHugePage}) {
    Budget budget({256 * kMiB});
    const std::vector<Retention> retentions = {kGlobal, sliding(512)};
    auto cache = KvCache::create(fingerprint_layout(32, retentions, 4, 16), budget, *memory,
                                 {.address_space = budget.limit(), .extent = extent});
    ASSERT_TRUE(cache.ok());
    const int64_t before = resident_bytes();
    std::vector<SeqId> sequences;
    for (int i = 0; i < 4; ++i) {
      const SeqId seq = (*cache)->create_sequence();
      sequences.push_back(seq);
      for (int done = 0; done < 8192; done += 512) {
        const std::vector<StepItem> items = {{.seq = seq, .n_tokens = 512}};
        Result<Step> step = (*cache)->plan_step(items);
        ASSERT_TRUE(step.ok());
        for (size_t g = 0; g < retentions.size(); ++g) {
          for (const BlockAddress& block : step->table(0, g).blocks) {
            if (!block.memory) continue;
            std::memset(block.memory, 1,
                        static_cast<size_t>((*cache)->layout().groups[g].block_bytes.v));
          }
        }
        step->commit();
      }
      const int64_t grown = resident_bytes() - before, used = budget.used().v;
      EXPECT_LE(grown, used + used / 50 + kConstant) << i;
      // What is committed and free need not be touched.
      const int64_t touched = (*cache)->usage().resident().v;
      EXPECT_GE(grown, touched - touched / 50 - kConstant) << i;
    }
    EXPECT_GT(budget.used().v, 64 * kMiB);
    (*cache)->release(sequences[1]);
    (*cache)->release(sequences[2]);
    const int64_t used = budget.used().v;
    EXPECT_LE(resident_bytes() - before, used + used / 50 + kConstant);
    ASSERT_TRUE((*cache)->rewind(sequences[0], 0).ok());
    (*cache)->release(sequences[3]);
    EXPECT_EQ(budget.used().v, 0);
    EXPECT_LE(resident_bytes() - before, kConstant);
  }
}

}  // namespace
}  // namespace weir

#include "kv/prefix_index.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

uint64_t hash_of(uint64_t i) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  return x * 0xd6e8feb86659fd93u;
}

TEST(GhostTable, TheLatestHalfOfWhatItHoldsIsKnownAndWhen) {
  constexpr uint64_t kEntries = 1024;
  for (const uint64_t start : {uint64_t{1}, (uint64_t{1} << 32) - kEntries, uint64_t{1} << 40}) {
    GhostTable table;
    table.open(kEntries);
    for (uint64_t i = 0; i < 4 * kEntries; ++i) table.remember(hash_of(i), start + i);
    uint64_t known = 0, old_known = 0;
    const uint64_t clock = start + 4 * kEntries;
    for (uint64_t i = 0; i < 4 * kEntries; ++i) {
      if (!table.knows(hash_of(i))) continue;
      EXPECT_EQ(table.last_use(hash_of(i), clock), start + i);
      (i < 2 * kEntries ? old_known : known) += 1;
    }
    EXPECT_EQ(known, kEntries);
    EXPECT_EQ(old_known, 0u);
    uint64_t latest = 0;
    for (uint64_t i = 4 * kEntries - kEntries / 2; i < 4 * kEntries; ++i)
      latest += table.knows(hash_of(i));
    EXPECT_GE(latest, kEntries / 2 * 95 / 100);
    EXPECT_FALSE(table.knows(hash_of(4 * kEntries)));
  }
}

TEST(GhostTable, AnotherUseIsNotAnotherEntry) {
  GhostTable table;
  table.open(8);
  for (uint64_t i = 0; i < 8; ++i) table.remember(hash_of(i), i);
  for (uint64_t time = 10; time < 30; ++time) table.remember(hash_of(3), time);
  for (uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(table.knows(hash_of(i))) << i;
  EXPECT_EQ(table.last_use(hash_of(3), 40), 29u);
}

TEST(GhostTable, ATableOfNoneOrFewEntries) {
  GhostTable closed;
  closed.remember(1, 1);
  EXPECT_FALSE(closed.knows(1));
  GhostTable few;
  few.open(3);
  for (uint64_t i = 0; i < 100; ++i) few.remember(hash_of(i), i);
  EXPECT_TRUE(few.knows(hash_of(99)));
  EXPECT_FALSE(few.knows(hash_of(5)));
}

}  // namespace
}  // namespace weir

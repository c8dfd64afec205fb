#include "kv/return_ages.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weir {
namespace {

TEST(ReturnAges, WithoutReturnsTheOldestIsTheLeastWorth) {
  ReturnAges ages;
  for (uint64_t time = 0; time < 1000; time += 10) {
    const ReturnAges::Rates rates = ages.rates(time);
    for (uint64_t age = 1; age < 2000; age *= 2) EXPECT_GT(rates(age), rates(2 * age));
    ages.leave(time);
  }
}

// Twelve in turn, each away for 110 uses: who has been away longest is next, and who is overdue has
// ended.
TEST(ReturnAges, InTurnTheOldestIsNext) {
  ReturnAges ages;
  uint64_t now = 0;
  for (int turn = 0; turn < 40; ++turn, now += 10) {
    if (turn >= 12) ages.come_back(now - 110, now);
    ages.leave(now);
    if (turn < 16) continue;
    const ReturnAges::Rates rates = ages.rates(now);
    for (uint64_t age = 0; age < 100; age += 10) EXPECT_LT(rates(age), rates(age + 10)) << turn;
    EXPECT_GT(rates(0), rates(120));
    EXPECT_GT(rates(120), rates(500));
  }
}

// Most never come back, some soon: the youngest is worth most, as before there were any returns.
TEST(ReturnAges, AmongOneTimersTheYoungestIsWorthMost) {
  ReturnAges ages;
  uint64_t now = 0;
  for (int turn = 0; turn < 300; ++turn, now += 10) {
    if (turn % 8 == 7) ages.come_back(now - 10, now);
    ages.leave(now);
  }
  const ReturnAges::Rates rates = ages.rates(now);
  for (uint64_t age = 0; age < 2000; age += 20) EXPECT_GT(rates(age), rates(age + 20));
}

// The habits of today count, not those of long ago.
TEST(ReturnAges, OldHabitsAreForgotten) {
  ReturnAges ages;
  uint64_t now = 0;
  for (int turn = 0; turn < 300; ++turn, now += 1000) {
    ages.leave(now);
    ages.come_back(now, now + 900);
  }
  for (int turn = 0; turn < 300; ++turn, now += 10) {
    ages.leave(now);
    ages.come_back(now, now + 5);
  }
  const ReturnAges::Rates rates = ages.rates(now);
  EXPECT_GT(rates(0), 20 * rates(800));
}

// A prefix that is nobody's is nobody's return; times that lie ahead do no harm.
TEST(ReturnAges, StrangeTimes) {
  ReturnAges ages;
  ages.come_back(5, 10);
  ages.leave(100);
  ages.come_back(200, 50);
  ages.come_back(200, 50);
  for (const uint64_t now : {uint64_t{0}, uint64_t{100}, UINT64_MAX}) {
    const double rate = ages.rates(now)(UINT64_MAX);
    EXPECT_TRUE(std::isfinite(rate) && rate > 0);
  }
}

}  // namespace
}  // namespace weir

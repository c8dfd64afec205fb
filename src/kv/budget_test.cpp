#include "kv/budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace weir {
namespace {

int64_t sum_of_tags(const Budget& budget) {
  int64_t sum = 0;
  for (int t = 0; t < kTagCount; ++t) sum += budget.used(static_cast<Tag>(t)).v;
  return sum;
}

TEST(Budget, GivesUpToTheLimitAndTakesBack) {
  Budget budget({100});
  Result<Reservation> a = budget.reserve({60}, Tag::live_global);
  ASSERT_TRUE(a.ok());
  EXPECT_TRUE(budget.would_fit({40}));
  EXPECT_FALSE(budget.would_fit({41}));
  const Result<Reservation> refused = budget.reserve({41}, Tag::live_local);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::over_budget);
  EXPECT_NE(refused.error().message().find("40 B of 100 B"), std::string::npos)
      << refused.error().message();
  {
    Result<Reservation> b = budget.reserve({40}, Tag::live_local);
    ASSERT_TRUE(b.ok());
    EXPECT_EQ(budget.used().v, 100);
  }
  EXPECT_EQ(budget.used().v, 60);
  EXPECT_EQ(budget.used(Tag::live_local).v, 0);
  EXPECT_EQ(budget.peak().v, 100);
  budget.reset_peak();
  EXPECT_EQ(budget.peak().v, 60);
}

TEST(Budget, SplitMergeAndRetagMoveBytesAndCreateNone) {
  Budget budget({100});
  Reservation whole = budget.reserve({80}, Tag::committed_free).value();
  Reservation part = whole.split({30});
  EXPECT_EQ(whole.size().v, 50);
  EXPECT_EQ(part.tag(), Tag::committed_free);
  part.retag(Tag::step_headroom);
  EXPECT_EQ(budget.used(Tag::step_headroom).v, 30);
  EXPECT_EQ(budget.used(Tag::committed_free).v, 50);
  whole.merge(std::move(part));
  EXPECT_EQ(whole.size().v, 80);
  EXPECT_EQ(budget.used(Tag::step_headroom).v, 0);
  EXPECT_EQ(budget.used().v, 80);
  EXPECT_EQ(sum_of_tags(budget), 80);
  whole = Reservation();
  EXPECT_EQ(budget.used().v, 0);
}

TEST(Budget, MovedFromReservationsGiveNothingBack) {
  Budget budget({100});
  Reservation a = budget.reserve({10}, Tag::idle).value();
  Reservation b = std::move(a);
  Reservation c = budget.reserve({20}, Tag::idle).value();
  c = std::move(b);
  EXPECT_EQ(budget.used().v, 10);
}

TEST(Budget, LoweredBelowUseItGivesNothingMore) {
  Budget budget({100});
  Reservation a = budget.reserve({80}, Tag::idle).value();
  budget.set_limit({50});
  EXPECT_EQ(budget.used().v, 80);
  EXPECT_FALSE(budget.would_fit({1}));
  EXPECT_FALSE(budget.reserve({1}, Tag::idle).ok());
  EXPECT_TRUE(budget.reserve({0}, Tag::idle).ok());
  a = Reservation();
  EXPECT_TRUE(budget.reserve({50}, Tag::idle).ok());
}

TEST(Budget, RefusesTheReservationThatATestChose) {
  Budget budget({100});
  budget.refuse_after(1);
  EXPECT_TRUE(budget.reserve({1}, Tag::idle).ok());
  EXPECT_FALSE(budget.reserve({1}, Tag::idle).ok());
  EXPECT_TRUE(budget.reserve({1}, Tag::idle).ok());
}

// Field case 16: one ledger, checked before allocating, at every instant.
TEST(Budget, ThreadsTogetherNeverPassTheLimit) {
  Budget budget({1000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget, t] {
      for (int i = 0; i < 20000; ++i) {
        Result<Reservation> r = budget.reserve({(i * 37 + t) % 600}, Tag::staging_in);
        if (r.ok()) r->retag(Tag::staging_out);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(budget.peak().v, 1000);
  EXPECT_GT(budget.peak().v, 500);
  EXPECT_EQ(budget.used().v, 0);
  EXPECT_EQ(sum_of_tags(budget), 0);
}

TEST(Budget, EveryTagHasAName) {
  for (int t = 0; t < kTagCount; ++t) EXPECT_STRNE(tag_name(static_cast<Tag>(t)), "unknown");
}

}  // namespace
}  // namespace weir

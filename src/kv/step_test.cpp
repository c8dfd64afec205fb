#include "kv/step.h"

#include <gtest/gtest.h>

#include "kv/testing/small_store.h"

namespace weir {
namespace {

constexpr int kB = 16;

TEST(Step, StoresOnlyWhatIsVisibleAtItsEnd) {
  SmallStore store(kB, {kGlobal, sliding(20)});
  const SeqId seq = store.sequence_of(10);
  const std::vector<StepItem> items = {{.seq = seq, .n_tokens = 90}};
  Step step = store.cache->plan_step(items).value();
  // Rows 0..99. The query at 100 reads rows 81..99: blocks 5 and 6.
  const StepTable& local = step.table(0, 1);
  EXPECT_EQ(local.first_row, 0);
  EXPECT_EQ(local.n_past, 10);
  EXPECT_EQ(local.n_new, 90);
  ASSERT_EQ(local.blocks.size(), 7u);
  EXPECT_NE(local.blocks[0].memory, nullptr);
  for (int i = 1; i < 5; ++i) {
    EXPECT_EQ(local.blocks[static_cast<size_t>(i)].memory, nullptr);
    EXPECT_EQ(local.blocks[static_cast<size_t>(i)].scratch, i - 1);
  }
  EXPECT_NE(local.blocks[5].memory, nullptr);
  EXPECT_NE(local.blocks[6].memory, nullptr);
  EXPECT_EQ(step.scratch_blocks(1), 4);
  EXPECT_EQ(step.scratch_blocks(0), 0);
  EXPECT_EQ(step.table(0, 0).blocks.size(), 7u);
  EXPECT_TRUE(local.first_visible_row.empty());
  EXPECT_EQ(step.positions(0).front(), 10);
  EXPECT_EQ(step.positions(0).back(), 99);

  const Bytes block = store.cache->layout().groups[1].block_bytes;
  EXPECT_EQ(store.budget.used(Tag::step_headroom), 2 * block);
  EXPECT_EQ(store.cache->usage().headroom, 2 * block);
  EXPECT_EQ(store.cache->usage().local, block);
  step.commit();
  store.cache->check_invariants();
  EXPECT_EQ(store.budget.used(Tag::step_headroom).v, 0);
  EXPECT_EQ(store.cache->usage().local, 2 * block);
  EXPECT_EQ(store.cache->usage().resident(), store.planned(100));
}

TEST(Step, ScratchBlocksAreNumberedOverAllItems) {
  SmallStore store(kB, {sliding(4)});
  const SeqId a = store.sequence_of(0), b = store.sequence_of(5);
  const std::vector<StepItem> items = {{.seq = a, .n_tokens = 40}, {.seq = b, .n_tokens = 60}};
  const Step step = store.cache->plan_step(items).value();
  std::vector<int32_t> numbers;
  for (size_t i = 0; i < 2; ++i) {
    for (const BlockAddress& block : step.table(i, 0).blocks) {
      if (!block.memory) numbers.push_back(block.scratch);
    }
  }
  ASSERT_EQ(static_cast<int>(numbers.size()), step.scratch_blocks(0));
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<int32_t>(i));
}

// Local blocks were freed when a step was scheduled; an aborted step lost the window.
TEST(Step, AbortedStepKeepsEveryVisibleBlock) {
  for (const bool by_destructor : {false, true}) {
    SmallStore store(kB, {kGlobal, sliding(20), chunked(48)});
    const SeqId seq = store.sequence_of(45, 5);
    const KvUsage before = store.cache->usage();
    const int64_t used = store.budget.used().v;
    {
      const std::vector<StepItem> items = {{.seq = seq, .n_tokens = 77}};
      Step step = store.cache->plan_step(items).value();
      Scratch scratch(store.cache->layout(), step);
      store.write(step, 0, scratch);
      store.cache->check_invariants();
      if (!by_destructor) step.abort();
    }
    store.cache->check_invariants();
    EXPECT_EQ(store.cache->length(seq), 45);
    EXPECT_EQ(store.budget.used().v, used);
    EXPECT_EQ(store.cache->usage().resident(), before.resident());
    EXPECT_TRUE(store.holds_its_window(seq));
    ASSERT_TRUE(store.append(seq, 30).ok());
    EXPECT_TRUE(store.holds_its_window(seq));
  }
}

// Whatever number of drafts is accepted, the window before the new end is there.
TEST(Step, RejectedDraftsLeaveTheWindowOfTheAcceptedEnd) {
  for (const Retention local :
       {sliding(1), sliding(2), sliding(17), sliding(40), chunked(16), chunked(24)}) {
    for (int64_t n = 0; n <= 50; n += 7) {
      for (const int64_t sure : {0, 1, 5}) {
        for (int64_t accepted = sure; accepted <= 60; accepted += 3) {
          SmallStore store(kB, {kGlobal, local});
          const SeqId seq = store.sequence_of(n);
          const std::vector<StepItem> items = {{.seq = seq, .n_tokens = 62, .min_accept = sure}};
          Step step = store.cache->plan_step(items).value();
          Scratch scratch(store.cache->layout(), step);
          store.write(step, 0, scratch);
          step.commit(std::vector<int64_t>{accepted});
          store.cache->check_invariants();
          ASSERT_EQ(store.cache->length(seq), n + accepted);
          ASSERT_EQ(store.cache->usage().resident(), store.planned(n + accepted));
          ASSERT_TRUE(store.holds_its_window(seq)) << n << " " << accepted;
        }
      }
    }
  }
}

TEST(Step, AcceptingLessThanWasCertainIsABug) {
  SmallStore store(kB, {sliding(4)});
  const SeqId seq = store.sequence_of(3);
  const std::vector<StepItem> items = {{.seq = seq, .n_tokens = 40}};
  Step step = store.cache->plan_step(items).value();
  EXPECT_DEATH(step.commit(std::vector<int64_t>{39}), "min_accept");
  step.commit(std::vector<int64_t>{0});  // as if that item had been aborted
  store.cache->check_invariants();
  EXPECT_EQ(store.cache->length(seq), 3);
  EXPECT_TRUE(store.holds_its_window(seq));
}

TEST(Step, RefusedStepChangesNothing) {
  SmallStore store(kB, {kGlobal, sliding(20)}, 3 * 4096);
  const SeqId seq = store.sequence_of(40);
  const int64_t used = store.budget.used().v;
  const std::vector<StepItem> items = {{.seq = seq, .n_tokens = 500}};
  EXPECT_GT(store.cache->step_need(items).v, store.budget.limit().v - used);
  const Result<Step> step = store.cache->plan_step(items);
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code(), Code::over_budget);
  EXPECT_NE(step.error().message().find("12 KiB"), std::string::npos) << step.error().message();
  store.cache->check_invariants();
  EXPECT_EQ(store.budget.used().v, used);
  EXPECT_TRUE(store.holds_its_window(seq));
}

TEST(Step, NeedIsWhatPlanningReserves) {
  SmallStore store(kB, {kGlobal, sliding(20)});
  SeqId seq = store.sequence_of(0);
  for (const int64_t n : {1, 7, 16, 90, 3, 200}) {
    const std::vector<StepItem> items = {{.seq = seq, .n_tokens = n}};
    const Bytes need = store.cache->step_need(items);
    const Bytes before = store.budget.used();
    Step step = store.cache->plan_step(items).value();
    EXPECT_EQ(store.budget.used(), before + need);
    step.commit();
  }
}

TEST(Step, OneAtATimeAndEachSequenceOnce) {
  SmallStore store(kB, {kGlobal});
  const SeqId seq = store.sequence_of(1);
  const std::vector<StepItem> twice = {{.seq = seq, .n_tokens = 1}, {.seq = seq, .n_tokens = 1}};
  EXPECT_DEATH((void)store.cache->plan_step(twice), "");
  const std::vector<StepItem> once = {{.seq = seq, .n_tokens = 1}};
  Step step = store.cache->plan_step(once).value();
  EXPECT_DEATH((void)store.cache->plan_step(once), "");
  EXPECT_DEATH(store.cache->release(seq), "");
  Step moved = std::move(step);
  moved.commit();
  EXPECT_EQ(store.cache->length(seq), 2);
}

struct CountingObserver final : KvObserver {
  int taken = 0, sealed = 0, freed = 0, aborted = 0;
  int64_t tokens = 0;
  void on_block_taken(int, uint32_t) override { ++taken; }
  void on_block_sealed(int, uint32_t) override { ++sealed; }
  void on_block_freed(int, uint32_t) override { ++freed; }
  void on_step_committed(int64_t n) override { tokens += n; }
  void on_step_aborted() override { ++aborted; }
};

TEST(Step, ObserversSeeBlocksComeAndGo) {
  SmallStore store(kB, {kGlobal, sliding(4)});
  CountingObserver observer;
  store.cache->add_observer(&observer);
  const SeqId seq = store.sequence_of(33, 1);
  EXPECT_EQ(observer.tokens, 33);
  EXPECT_EQ(observer.taken, 6);
  EXPECT_EQ(observer.sealed, 4);
  // At 33 the query reads from row 30 on: local block 0 is gone.
  EXPECT_EQ(observer.freed, 1);
  {
    const std::vector<StepItem> items = {{.seq = seq, .n_tokens = 20}};
    const Result<Step> step = store.cache->plan_step(items);
    ASSERT_TRUE(step.ok());
  }
  EXPECT_EQ(observer.aborted, 1);
  store.cache->release(seq);
  EXPECT_EQ(observer.freed, observer.taken);
}

}  // namespace
}  // namespace weir

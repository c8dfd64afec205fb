#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include "kv/block_table.h"
#include "kv/testing/small_store.h"

namespace weir {
namespace {

// A pool with blocks of 32 bytes a token.
struct PoolTest : testing::Test {
  explicit PoolTest(int block_tokens = 32)
      : layout(fingerprint_layout(block_tokens, std::vector{kGlobal})) {
    auto made = BlockPool::create(layout.groups[0], budget, memory, observers,
                                  {.address_space = {40960}, .extent = {4096}, .poison = true});
    WEIR_CHECK(made.ok());
    pool = std::move(*made);
  }
  ~PoolTest() override {
    for (int64_t slot = pool->end_slot() - 1; slot >= 0; --slot) {
      const uint32_t id = static_cast<uint32_t>(slot);
      if (slot < pool->end_slot() && pool->references(id) > 0) pool->drop(id);
    }
    EXPECT_EQ(budget.used().v, 0);
  }

  std::vector<uint32_t> take(int64_t n) {
    std::vector<uint32_t> slots = pool->take(n, BlockUse::live).value();
    pool->check_invariants();
    return slots;
  }
  void drop(uint32_t slot) {
    pool->drop(slot);
    pool->check_invariants();
  }

  Budget budget{{40960}};
  FakeMemory memory;
  std::vector<KvObserver*> observers;
  KvLayout layout;
  std::unique_ptr<BlockPool> pool;
};

TEST_F(PoolTest, TakesTheLowestFreeSlots) {
  EXPECT_EQ(take(6), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5}));
  drop(4);
  drop(1);
  EXPECT_EQ(take(3), (std::vector<uint32_t>{1, 4, 6}));
}

// Blocks of 1024 bytes: four fill an extent.
TEST_F(PoolTest, ChargesCommittedExtentsAndGivesEmptyOnesBack) {
  EXPECT_EQ(pool->need(1).v, 4096);
  EXPECT_EQ(pool->need(4).v, 4096);
  EXPECT_EQ(pool->need(5).v, 8192);
  take(5);
  EXPECT_EQ(budget.used().v, 8192);
  EXPECT_EQ(memory.committed(), 8192);
  EXPECT_EQ(budget.used(Tag::live_global).v, 5 * 1024);
  EXPECT_EQ(budget.used(Tag::committed_free).v, 3 * 1024);
  EXPECT_EQ(pool->need(3).v, 0);
  drop(4);
  EXPECT_EQ(budget.used().v, 4096);
  EXPECT_EQ(memory.committed(), 4096);
  for (uint32_t slot = 0; slot < 4; ++slot) drop(slot);
  EXPECT_EQ(budget.used().v, 0);
  EXPECT_EQ(memory.committed(), 0);
}

// Extent 0 goes while extent 1 has room: the room comes first.
TEST_F(PoolTest, PrefersCommittedMemoryToALowerSlot) {
  take(6);
  for (uint32_t slot = 0; slot < 4; ++slot) drop(slot);
  EXPECT_EQ(pool->need(2).v, 0);
  EXPECT_EQ(pool->need(3).v, 4096);
  EXPECT_EQ(take(3), (std::vector<uint32_t>{6, 7, 0}));
}

TEST_F(PoolTest, ForeseesWhatFreeingAndTakingCommits) {
  take(9);
  // Slot 8 is alone in the third extent; slots 0 and 1 leave two neighbours behind.
  EXPECT_EQ(pool->change(std::vector<uint32_t>{8}, 0).v, -4096);
  EXPECT_EQ(pool->change(std::vector<uint32_t>{8}, 1).v, 0);
  EXPECT_EQ(pool->change(std::vector<uint32_t>{0, 8}, 1).v, -4096);
  EXPECT_EQ(pool->change(std::vector<uint32_t>{0, 1}, 3).v, 0);
  EXPECT_EQ(pool->change(std::vector<uint32_t>{0, 1, 2, 3}, 0).v, -4096);
  EXPECT_EQ(pool->change(std::vector<uint32_t>{0, 1, 2, 3}, 5).v, 0);
}

TEST_F(PoolTest, RefusesAllOrNothing) {
  budget.set_limit({2 * 4096});
  const auto refused = pool->take(9, BlockUse::live);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::over_budget);
  EXPECT_EQ(budget.used().v, 0);
  take(8);
  budget.set_limit({1 << 20});
  EXPECT_FALSE(pool->has_slots(0, 33));
  EXPECT_TRUE(pool->has_slots(1, 33));
  EXPECT_EQ(pool->take(33, BlockUse::live).error().code(),
            Code::over_budget);  // 40 slots of address space
  EXPECT_TRUE(pool->take(32, BlockUse::live).ok());
  pool->check_invariants();
}

TEST_F(PoolTest, FailedCommitLeavesNothing) {
  take(4);
  memory.fail_commit_after(0);
  const auto failed = pool->take(8, BlockUse::live);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), Code::io_error);
  EXPECT_EQ(budget.used().v, 4096);
  pool->check_invariants();
  // Two runs of extents, of which the second fails.
  take(12);
  for (uint32_t slot = 4; slot < 8; ++slot) drop(slot);
  memory.fail_commit_after(1);
  EXPECT_FALSE(pool->take(5, BlockUse::live).ok());
  EXPECT_EQ(memory.committed(), 3 * 4096);
  EXPECT_EQ(budget.used().v, 3 * 4096);
  pool->check_invariants();
}

TEST_F(PoolTest, SharedBlockIsFreedByItsLastOwner) {
  take(1);
  pool->seal(0);
  pool->share(0);
  drop(0);
  EXPECT_EQ(pool->live().v, 1024);
  drop(0);
  EXPECT_EQ(pool->live().v, 0);
}

TEST_F(PoolTest, OpenBlockCannotBeShared) {
  take(1);
  EXPECT_DEATH(pool->share(0), "is_sealed");
}

TEST_F(PoolTest, HeadroomIsTaggedUntilSettled) {
  const std::vector<uint32_t> slots = pool->take(2, BlockUse::headroom).value();
  EXPECT_EQ(budget.used(Tag::step_headroom).v, 2048);
  pool->settle(slots[0]);
  EXPECT_EQ(budget.used(Tag::step_headroom).v, 1024);
  EXPECT_EQ(budget.used(Tag::live_global).v, 1024);
  drop(slots[1]);
  EXPECT_EQ(budget.used(Tag::step_headroom).v, 0);
}

// Blocks of 1536 bytes: the third of an extent reaches into the next one.
struct StraddlingPoolTest : PoolTest {
  StraddlingPoolTest() : PoolTest(48) {}
};

TEST_F(StraddlingPoolTest, BlockAcrossExtentsKeepsBoth) {
  EXPECT_EQ(pool->need(2).v, 4096);
  EXPECT_EQ(pool->need(3).v, 8192);
  take(3);
  EXPECT_EQ(memory.committed(), 8192);
  drop(0);
  drop(1);
  EXPECT_EQ(memory.committed(), 8192);
  drop(2);
  EXPECT_EQ(memory.committed(), 0);
}

TEST(BlockTable, KeepsItsPlaceWhileItsFrontMoves) {
  BlockTable table;
  table.start_at(3);
  for (const uint32_t slot : {7, 8, 9}) table.push_back(slot);
  EXPECT_EQ(table.end_block(), 6);
  EXPECT_EQ(table.at(4), 8u);
  EXPECT_EQ(table.first_row(16), 48);
  table.set_first_row(50);
  EXPECT_EQ(table.first_row(16), 50);
  EXPECT_EQ(table.pop_front(), 7u);
  EXPECT_EQ(table.first_row(16), 64);
  EXPECT_EQ(table.replace(4, 5), 8u);
  EXPECT_EQ(table.pop_back(), 9u);
  EXPECT_TRUE(table.holds(4));
  EXPECT_FALSE(table.holds(3));
  EXPECT_FALSE(table.holds(5));
}

// Freed memory goes back with hysteresis, and at once when it is wanted.
TEST(PoolSpares, AFewEmptyExtentsStayUntilTheyAreWanted) {
  Budget budget{{1 << 20}};
  FakeMemory memory;
  std::vector<KvObserver*> observers;
  const KvLayout layout = fingerprint_layout(32, std::vector{kGlobal});  // four blocks an extent
  auto pool =
      BlockPool::create(
          layout.groups[0], budget, memory, observers,
          {.address_space = {1 << 20}, .extent = {4096}, .poison = true, .spare_extents = 2})
          .value();
  const std::vector<uint32_t> slots = pool->take(16, BlockUse::live).value();
  for (const uint32_t slot : slots) {
    pool->drop(slot);
    pool->check_invariants();
  }
  EXPECT_EQ(memory.committed(), 2 * 4096);
  EXPECT_EQ(budget.used(Tag::committed_free).v, 2 * 4096);
  EXPECT_EQ(pool->need(8).v, 0);
  EXPECT_EQ(pool->need(9).v, 4096);
  const std::vector<uint32_t> again = pool->take(8, BlockUse::live).value();
  EXPECT_EQ(memory.committed(), 2 * 4096);
  for (const uint32_t slot : again) pool->drop(slot);
  pool->check_invariants();
  EXPECT_TRUE(pool->release_spares());
  pool->check_invariants();
  EXPECT_FALSE(pool->release_spares());
  EXPECT_EQ(memory.committed(), 0);
  EXPECT_EQ(budget.used().v, 0);
}

}  // namespace
}  // namespace weir

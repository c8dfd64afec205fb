// Tiers that fail, lose and lie; and the k-th call that fails, for every k.
#include <gtest/gtest.h>

#include <functional>

#include "kv/testing/tier_store.h"

namespace weir {
namespace {

constexpr int kB = 4;
const Tokens kPrompt = tokens_from(0, 41);

KvLayout small_layout() { return fingerprint_layout(kB, std::vector{kGlobal, sliding(9)}, 2); }

void demote(TierStore& store) {
  store.keep(kPrompt, {20, 40});
  store.write_all();
  store.evict_all();
}

void expect_right_rows(TierStore& store) {
  const SeqId seq = store.start(kPrompt);
  store.read(seq, kPrompt);
  for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
  store.release(seq);
}

// --- lies
// -----------------------------------------------------------------------------------------

// Every read comes back wrong: a miss with its reason, and the rows are computed.
TEST(TierFaults, WhateverIsWrongWithARecordIsAMiss) {
  for (const TierFault fault :
       {TierFault::flip, TierFault::cut, TierFault::foreign, TierFault::newer, TierFault::fail}) {
    SCOPED_TRACE(static_cast<int>(fault));
    MemoryTier tier(1);
    demote(*std::make_unique<TierStore>(tier, small_layout()));
    TierStore store(tier, small_layout());
    const LoadId load = *store.cache->start_load(PrefixStore::kDefault, kPrompt);
    store.poll();  // found
    ASSERT_EQ(store.cache->load_state(load), LoadState::reading);
    tier.set_fault(fault, 256);
    store.poll();
    ASSERT_EQ(store.cache->load_state(load), LoadState::ended);
    const PrefixMatch found = store.cache->end_load(load);
    EXPECT_EQ(found.tokens, 0);
    EXPECT_EQ(found.reason, MissReason::load_failed);
    EXPECT_EQ(found.lost, 40);
    const TierMiss miss = fault == TierFault::fail ? TierMiss::failed : TierMiss::corrupt;
    EXPECT_EQ(store.misses(miss), 1u);
    EXPECT_EQ(store.cache->tier_counters().hits, 0u);
    expect_right_rows(store);
    EXPECT_TRUE(store.is_at_baseline());
    tier.end_faults();
    if (miss == TierMiss::corrupt) {
      // Nobody reads it again.
      EXPECT_EQ(store.bring(kPrompt).tokens, 0);
      EXPECT_EQ(store.misses(TierMiss::not_held), 1u);
    } else {
      EXPECT_EQ(store.bring(kPrompt).tokens, 40);
    }
  }
}

TEST(TierFaults, AnotherBlocksRecordIsAMissUnlessItIsTheRightOne) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    MemoryTier tier(seed);
    demote(*std::make_unique<TierStore>(tier, small_layout()));
    TierStore store(tier, small_layout());
    tier.set_fault(TierFault::swap, 128);
    store.bring(kPrompt);
    expect_right_rows(store);
    EXPECT_TRUE(store.is_at_baseline());
  }
}

TEST(TierFaults, WhatComesOfABrokenLoadIsUsedUpToTheDamage) {
  MemoryTier tier(1);
  demote(*std::make_unique<TierStore>(tier, small_layout()));
  TierStore store(tier, small_layout());
  const auto names = chain_names(root_name(small_layout(), "m", "s"), kPrompt, kB);
  const LoadId load = *store.cache->start_load(PrefixStore::kDefault, tokens_from(0, 21));
  store.poll(2);
  EXPECT_EQ(store.cache->end_load(load).tokens, 20);
  const LoadId rest = *store.cache->start_load(PrefixStore::kDefault, kPrompt);
  store.poll();
  ASSERT_EQ(store.cache->load_state(rest), LoadState::reading);
  tier.fail_after(0);
  store.poll();
  const PrefixMatch found = store.cache->end_load(rest);
  EXPECT_EQ(found.first_computed(), 20);
  EXPECT_EQ(found.reason, MissReason::load_failed);
  EXPECT_EQ(found.lost, 20);
  expect_right_rows(store);
}

TEST(TierFaults, ATierThatFindsWhatItDoesNotHaveIsNoWorseThanNone) {
  MemoryTier tier(1);
  TierStore store(tier, small_layout());
  tier.set_fault(TierFault::boast, 256);
  const PrefixMatch found = store.bring(kPrompt);
  EXPECT_EQ(found.tokens, 0);
  EXPECT_EQ(found.reason, MissReason::load_failed);
  EXPECT_EQ(store.misses(TierMiss::failed), 1u);
  EXPECT_TRUE(store.is_at_baseline());
}

TEST(TierFaults, ATierThatReportsTwiceChangesNothing) {
  MemoryTier tier(1);
  tier.set_fault(TierFault::repeat, 256);
  TierStore store(tier, small_layout());
  demote(store);
  EXPECT_EQ(store.bring(kPrompt).tokens, 40);
  expect_right_rows(store);
  EXPECT_TRUE(store.is_at_baseline());
}

// --- the k-th call fails, for every k ------------------------------------------------------------

// Two conversations in turn under a budget that holds one, through the tier.
void take_turns(TierStore& store, const std::function<void(const Status&)>& done) {
  KvCache& cache = *store.cache;
  for (int turn = 0; turn < 4; ++turn) {
    const Tokens prompt = tokens_from(100 * (turn % 2), 41 + turn / 2 * 8);
    const PrefixMatch match = store.bring(prompt);
    Result<SeqId> seq = cache.resume(PrefixStore::kDefault, prompt, match);
    done(seq.status());
    if (!seq) continue;
    store.tokens[*seq] = Tokens(prompt.begin(), prompt.begin() + match.first_computed());
    const auto n = static_cast<int64_t>(prompt.size());
    for (int64_t at = match.first_computed(); at < n;) {
      int64_t end = at < n - 1 ? n - 1 : n;
      if (const int64_t replay = cache.replay_end(*seq); replay > at) end = std::min(end, replay);
      const Status status = store.append(*seq, Tokens(prompt.begin() + at, prompt.begin() + end));
      done(status);
      if (status.ok()) at = end;
      if (at % kB == 0) cache.mark_restart(*seq, RestartKind::end_of_prompt);
      for (const bool is_right : store.is_right)
        EXPECT_TRUE(is_right || cache.replay_end(*seq) > 0);
    }
    store.release(*seq);
    store.write_all();
  }
}

constexpr int64_t kRoomForOne = 11 * 4096;

// Arms the k-th call of a new store, for every k that is reached.
template <typename Arm, typename Disarm>
void fail_each(Code expected, int64_t least, Arm arm, Disarm was_reached) {
  int64_t k = 0;
  for (bool is_reached = true; is_reached && k < 2000; ++k) {
    SCOPED_TRACE(k);
    MemoryTier tier(static_cast<uint64_t>(k));
    TierStore store(tier, fingerprint_layout(kB, std::vector{kGlobal, sliding(9)}, 8), nullptr, "m",
                    "s", kRoomForOne);
    ASSERT_TRUE(tier.set_write_buffer(store.budget, {4000}));
    arm(store, k);
    int errors = 0;
    take_turns(store, [&](const Status& status) {
      store.cache->check_invariants();
      if (status.ok()) return;
      EXPECT_EQ(status.code(), expected) << status.message();
      ++errors;
    });
    EXPECT_LE(errors, 1);
    is_reached = was_reached(store);
    if (!is_reached) {
      EXPECT_EQ(errors, 0);
      EXPECT_GE(store.cache->tier_counters().hits, 2u);
    }
    EXPECT_TRUE(store.is_at_baseline());
    tier.close_write_buffer();
  }
  EXPECT_GT(k, least);
}

TEST(TierFaults, EveryRefusedReservation) {
  fail_each(
      Code::over_budget, 25, [](TierStore& store, int64_t k) { store.budget.refuse_after(k); },
      [](TierStore& store) { return !store.budget.will_refuse(); });
}

TEST(TierFaults, EveryFailedCommit) {
  fail_each(
      Code::io_error, 5, [](TierStore& store, int64_t k) { store.memory.fail_commit_after(k); },
      [](TierStore& store) { return !store.memory.will_fail_commit(); });
}

TEST(TierFaults, EveryRefusedCallOfTheTier) {
  fail_each(
      Code::ok, 60, [](TierStore& store, int64_t k) { store.tier.refuse_after(k); },
      [](TierStore& store) { return !store.tier.will_fail(); });
}

TEST(TierFaults, EveryFailedCallOfTheTier) {
  fail_each(
      Code::ok, 60, [](TierStore& store, int64_t k) { store.tier.fail_after(k); },
      [](TierStore& store) { return !store.tier.will_fail(); });
}

}  // namespace
}  // namespace weir

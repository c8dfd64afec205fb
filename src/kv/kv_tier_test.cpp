// Conversations that leave RAM for a tier and come back.
#include "kv/kv_tier.h"

#include <gtest/gtest.h>

#include "kv/testing/tier_store.h"

namespace weir {
namespace {

constexpr int kB = 4;
const Tokens kPrompt = tokens_from(0, 41);

KvLayout small_layout(int layers = 2) {
  return fingerprint_layout(kB, std::vector{kGlobal, sliding(9)}, layers);
}

// Leaves kPrompt in the tier alone, with restart points at 20 and 40.
void demote(TierStore& store) {
  store.keep(kPrompt, {20, 40});
  store.write_all();
  store.evict_all();
  ASSERT_EQ(store.cache->match(PrefixStore::kDefault, kPrompt).first_computed(), 0);
}

void expect_right_rows(TierStore& store, const Tokens& prompt) {
  const SeqId seq = store.start(prompt);
  store.read(seq, prompt);
  for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
  store.release(seq);
}

TEST(Tier, AConversationComesBack) {
  MemoryTier tier(1);
  TierStore store(tier, small_layout());
  demote(store);
  // 10 global blocks once; the local blocks that a restart at 20 and at 40 reads, two each.
  EXPECT_EQ(tier.stats().records, 10 + 2 + 2);
  const PrefixMatch found = store.bring(kPrompt);
  EXPECT_EQ(found.tokens, 40);
  EXPECT_EQ(found.heal_tokens, 0);
  EXPECT_EQ(found.reason, MissReason::none);
  EXPECT_EQ(store.cache->tier_counters().hits, 1u);
  EXPECT_EQ(store.cache->tier_counters().hit_tokens, 40u);
  EXPECT_EQ(store.cache->tier_counters().read_records, 12u);
  expect_right_rows(store, kPrompt);
  EXPECT_EQ(store.match.first_computed(), 40);
  EXPECT_TRUE(store.is_at_baseline());
}

TEST(Tier, AnotherProcessFindsWhatOneLeft) {
  MemoryTier tier(1);
  demote(*std::make_unique<TierStore>(tier, small_layout()));
  TierStore store(tier, small_layout());
  const Tokens other = tokens_from(0, 30) + tokens_from(100, 20);
  EXPECT_EQ(store.bring(other).tokens, 20);  // the restart point before the two part
  expect_right_rows(store, other);
  EXPECT_EQ(store.bring(kPrompt).tokens, 40);
  expect_right_rows(store, kPrompt);
}

TEST(Tier, NobodyElseFindsIt) {
  MemoryTier tier(1);
  demote(*std::make_unique<TierStore>(tier, small_layout()));
  TierStore other_model(tier, small_layout(), nullptr, "m2");
  EXPECT_EQ(other_model.bring(kPrompt).tokens, 0);
  TierStore other_salt(tier, small_layout(), nullptr, "m", "s2");
  EXPECT_EQ(other_salt.bring(kPrompt).tokens, 0);
  TierStore other_layout(tier, small_layout(3));
  EXPECT_EQ(other_layout.bring(kPrompt).tokens, 0);
  TierStore store(tier, small_layout());
  const NamespaceId without_salt = store.cache->open_namespace();
  EXPECT_FALSE(store.cache->start_load(without_salt, kPrompt).has_value());
  EXPECT_EQ(store.misses(TierMiss::not_held), 0u);
  EXPECT_EQ(other_salt.misses(TierMiss::not_held), 1u);
}

// Only what is missing is read.
TEST(Tier, ReadsOnlyWhatRamLacks) {
  MemoryTier tier(1);
  TierStore store(tier, small_layout());
  store.keep(kPrompt, {20, 40});
  store.write_all();
  // The end goes, the beginning stays.
  store.cache->drop(PrefixStore::kDefault, kPrompt, 20);
  EXPECT_EQ(store.cache->match(PrefixStore::kDefault, kPrompt).first_computed(), 20);
  store.keep(kPrompt, {40});
  store.write_all();
  const uint64_t before = store.cache->tier_counters().read_records;
  TierStore second(tier, small_layout());
  second.bring(tokens_from(0, 21));
  EXPECT_EQ(second.cache->tier_counters().read_records, 5u + 2u);
  EXPECT_EQ(second.bring(kPrompt).tokens, 40);
  EXPECT_EQ(second.cache->tier_counters().read_records, 5u + 2u + 5u + 2u);
  EXPECT_EQ(before, store.cache->tier_counters().read_records);
}

// A restart point is there when all of its parts are.
TEST(Tier, ARestartPointIsVisibleAsAWholeOrNotAtAll) {
  MemoryTier tier(1);
  demote(*std::make_unique<TierStore>(tier, small_layout(6)));
  const auto names = chain_names(root_name(small_layout(6), "m", "s"), kPrompt, kB);
  ASSERT_TRUE(tier.erase(TierTicket{1 << 20}, {names[8], 1}));
  tier.poll();
  TierStore store(tier, small_layout(6));
  EXPECT_EQ(store.bring(kPrompt).first_computed(), 20);
  expect_right_rows(store, kPrompt);
}

// Without local rows at all, the global ones still save what healing need not read.
TEST(Tier, GlobalRowsAloneAreHealed) {
  MemoryTier tier(1);
  demote(*std::make_unique<TierStore>(tier, small_layout(1)));
  const auto names = chain_names(root_name(small_layout(1), "m", "s"), kPrompt, kB);
  for (const Digest& name : names) ASSERT_TRUE(tier.erase(TierTicket{1 << 20}, {name, 1}));
  tier.poll();
  TierStore store(tier, small_layout(1));
  const PrefixMatch found = store.bring(kPrompt);
  EXPECT_EQ(found.tokens, 40);
  EXPECT_GT(found.heal_tokens, 0);
  expect_right_rows(store, kPrompt);
}

// --- leases
// ---------------------------------------------------------------------------------------

TEST(Tier, ABlockThatIsBeingWrittenStaysWhereItIs) {
  MemoryTier tier(1);
  tier.set_delay(6);
  TierStore store(tier, small_layout());
  store.keep(kPrompt, {40});
  const Bytes idle = store.cache->usage().idle + store.cache->usage().restart;
  EXPECT_FALSE(store.cache->demote(PrefixStore::kDefault, kPrompt));
  store.cache->check_invariants();
  EXPECT_EQ(store.budget.used(Tag::staging_out), idle);
  EXPECT_EQ(store.cache->evictable().v, 0);
  // The chain goes, its blocks are written all the same: the tier checks that they do not change.
  store.evict_all();
  EXPECT_EQ(store.cache->match(PrefixStore::kDefault, kPrompt).tokens, 0);
  EXPECT_EQ(store.budget.used(Tag::staging_out), idle);
  store.poll(10);
  EXPECT_EQ(store.budget.used(Tag::staging_out).v, 0);
  EXPECT_EQ(store.memory.committed(), 0);
  EXPECT_EQ(store.bring(kPrompt).tokens, 40);
}

TEST(Tier, ARunningSequenceSharesALeasedBlock) {
  MemoryTier tier(1);
  tier.set_delay(6);
  TierStore store(tier, small_layout());
  store.keep(kPrompt, {40});
  store.cache->demote(PrefixStore::kDefault, kPrompt);
  const SeqId seq = store.start(kPrompt);
  store.read(seq, kPrompt + tokens_from(200, 30));
  EXPECT_TRUE(store.cache->rewind(seq, 70).ok());
  store.cache->check_invariants();
  store.poll(10);
  store.release(seq);
  EXPECT_TRUE(store.is_at_baseline());
}

TEST(Tier, BlocksOnTheirWayInAreInTheAccounts) {
  MemoryTier tier(1);
  TierStore store(tier, small_layout());
  demote(store);
  tier.set_delay(4);
  const LoadId load = *store.cache->start_load(PrefixStore::kDefault, kPrompt);
  EXPECT_EQ(store.cache->load_state(load), LoadState::looking);
  while (store.cache->load_state(load) == LoadState::looking) store.poll();
  EXPECT_EQ(store.cache->load_state(load), LoadState::reading);
  const KvLayout& layout = store.cache->layout();
  EXPECT_EQ(store.budget.used(Tag::staging_in),
            10 * layout.groups[0].block_bytes + 2 * layout.groups[1].block_bytes);
  EXPECT_EQ(store.cache->end_load(load).reason, MissReason::load_failed);
  EXPECT_EQ(store.misses(TierMiss::cancelled), 1u);
  // What the tier still writes to stays until it has.
  EXPECT_GT(store.budget.used(Tag::staging_in).v, 0);
  EXPECT_TRUE(store.is_at_baseline());
  EXPECT_EQ(store.budget.used(Tag::staging_in).v, 0);
}

TEST(Tier, ACacheMayGoWhileSomethingIsUnderWay) {
  MemoryTier tier(1);
  {
    TierStore store(tier, small_layout());
    demote(store);
    store.keep(tokens_from(300, 41), {40});
    tier.set_delay(8);
    store.cache->demote(PrefixStore::kDefault, tokens_from(300, 41));
    store.cache->start_load(PrefixStore::kDefault, kPrompt);
    store.poll(2);
    store.cache.reset();
    EXPECT_EQ(store.budget.used().v, 0);
  }
  TierStore store(tier, small_layout());
  EXPECT_EQ(store.bring(kPrompt).tokens, 40);
}

// --- what is written, and when
// --------------------------------------------------------------------

TEST(Tier, WritesAheadOnlyAsMuchAsItMay) {
  MemoryTier tier(1);
  tier.set_delay(3);
  TierStore store(tier, small_layout());
  for (int i = 0; i < 5; ++i) store.keep(tokens_from(100 * i, 41), {40});
  const Bytes most = 5 * store.cache->layout().groups[0].block_bytes;
  for (int i = 0; i < 100; ++i) {
    store.cache->write_behind(most);
    EXPECT_LE(store.budget.used(Tag::staging_out), most);
    store.poll();
  }
  EXPECT_EQ(tier.stats().records, 5 * 12);
}

TEST(Tier, WhatIsCheaperToComputeIsNotWritten) {
  MemoryTier tier(1);
  LoadIfFaster policy;
  policy.seconds_per_token = 1e-6;
  policy.bytes_per_second = 1e6;
  TierStore store(tier, small_layout(), &policy);
  store.keep(kPrompt, {40});
  store.write_all();
  EXPECT_EQ(tier.stats().records, 0);
  EXPECT_GT(store.cache->tier_counters().not_worth, 0u);
  // On request it is, and is not read again.
  while (!store.cache->demote(PrefixStore::kDefault, kPrompt)) store.poll();
  store.evict_all();
  EXPECT_EQ(store.bring(kPrompt).tokens, 0);
  EXPECT_EQ(store.misses(TierMiss::not_worth), 1u);
  policy.seconds_per_token = 1;
  EXPECT_EQ(store.bring(kPrompt).tokens, 40);
}

TEST(Tier, AWriteBufferTakesWhatHasToGoAtOnce) {
  MemoryTier tier(1);
  TierStore store(tier, small_layout());
  store.keep(kPrompt, {40});
  store.evict_all();
  EXPECT_EQ(tier.stats().records, 0);
  EXPECT_GT(store.cache->tier_counters().evicted_unwritten, 0u);
  ASSERT_TRUE(tier.set_write_buffer(store.budget, {1 << 17}));
  store.keep(kPrompt, {40});
  store.evict_all();
  EXPECT_EQ(store.memory.committed(), 0);
  EXPECT_EQ(store.bring(kPrompt).tokens, 40);
  expect_right_rows(store, kPrompt);
  EXPECT_TRUE(store.is_at_baseline());
  tier.close_write_buffer();
}

// What is forgotten on purpose is forgotten everywhere.
TEST(Tier, DroppedChainsAreErased) {
  MemoryTier tier(1);
  TierStore store(tier, small_layout());
  demote(store);
  store.cache->drop(PrefixStore::kDefault, kPrompt, 0);
  store.poll();
  EXPECT_EQ(tier.stats().records, 0);
  EXPECT_EQ(store.bring(kPrompt).tokens, 0);
}

TEST(Tier, NothingComesWhereThereIsNoRoom) {
  MemoryTier tier(1);
  TierStore store(tier, small_layout());
  demote(store);
  store.budget.set_limit(store.budget.used() + Bytes{6000});
  const PrefixMatch found = store.bring(kPrompt);
  EXPECT_EQ(found.tokens, 0);
  EXPECT_NE(found.reason, MissReason::load_failed);
  EXPECT_EQ(store.misses(TierMiss::no_room), 1u);
  EXPECT_TRUE(store.is_at_baseline());
}

}  // namespace
}  // namespace weir

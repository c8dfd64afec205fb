// Sequences that give way, and faults in the middle of an operation.
#include <gtest/gtest.h>

#include <functional>

#include "kv/testing/small_store.h"

namespace weir {
namespace {

constexpr int kB = 16;  // blocks of 512 bytes in extents of eight

struct Evictions final : KvObserver {
  std::vector<SeqId> gone;
  int64_t bytes = 0;
  void on_evicted(const EvictionCandidate& unit) override {
    gone.push_back(unit.seq);
    bytes += unit.unique_bytes;
  }
};

struct EvictTest : testing::Test {
  EvictTest() { store.cache->add_observer(&evictions); }
  SeqId kept(int64_t tokens) {
    const SeqId seq = store.sequence_of(tokens);
    store.cache->set_evictable(seq, true);
    return seq;
  }
  SmallStore store{kB, {kGlobal}, 4 * 4096};
  Evictions evictions;
};

// Field case 26: retain A, B, C; use A; B gives way to D.
TEST_F(EvictTest, LeastRecentlyUsedMeansUsed) {
  const SeqId a = kept(8 * kB), b = kept(8 * kB), c = kept(8 * kB);
  const SeqId fork = store.cache->fork(a).value();  // a use that takes no memory
  store.cache->release(fork);
  const SeqId d = store.sequence_of(16 * kB);
  EXPECT_EQ(evictions.gone, std::vector<SeqId>{b});
  EXPECT_EQ(evictions.bytes, 8 * 512);
  EXPECT_TRUE(store.cache->exists(a));
  EXPECT_FALSE(store.cache->exists(b));
  EXPECT_TRUE(store.cache->exists(c));
  EXPECT_EQ(store.cache->length(d), 16 * kB);
}

TEST_F(EvictTest, NobodyIsEvictedForAStepThatCannotFit) {
  const SeqId a = kept(8 * kB), b = kept(8 * kB);
  const SeqId d = store.sequence_of(1);
  EXPECT_EQ(store.append(d, 33 * kB).code(), Code::over_budget);
  EXPECT_TRUE(evictions.gone.empty());
  EXPECT_TRUE(store.cache->exists(a) && store.cache->exists(b));
  ASSERT_TRUE(store.append(d, 31 * kB).ok());
  EXPECT_EQ(evictions.gone.size(), 2u);
}

TEST_F(EvictTest, SequencesInTheStepStay) {
  const SeqId a = kept(8 * kB), b = kept(8 * kB);
  ASSERT_TRUE(store.append(a, 20 * kB).ok());
  EXPECT_EQ(evictions.gone, std::vector<SeqId>{b});
  EXPECT_EQ(store.append(a, 8 * kB).code(), Code::over_budget);
  EXPECT_TRUE(store.cache->exists(a));
}

TEST_F(EvictTest, SharedBlocksGoWithTheLastSequence) {
  const SeqId a = kept(16 * kB);
  const SeqId b = store.cache->fork(a).value();
  store.cache->set_evictable(b, true);
  const SeqId d = store.sequence_of(24 * kB);
  EXPECT_EQ(evictions.gone.size(), 2u);
  EXPECT_EQ(evictions.bytes, 16 * 512);
  EXPECT_TRUE(store.cache->exists(d));
}

struct Choosing final : EvictionPolicy {
  int answer = -1;
  std::vector<EvictionCandidate> seen;
  int64_t missing = 0;
  int choose(std::span<const EvictionCandidate> candidates, int64_t bytes_missing) override {
    seen.assign(candidates.begin(), candidates.end());
    missing = bytes_missing;
    return answer;
  }
};

TEST_F(EvictTest, PolicyChoosesOrRefuses) {
  const SeqId a = kept(8 * kB), b = kept(16 * kB);
  const SeqId d = store.sequence_of(0);
  Choosing policy;
  store.cache->set_eviction_policy(&policy);
  EXPECT_EQ(store.append(d, 16 * kB).code(), Code::over_budget);
  ASSERT_EQ(policy.seen.size(), 2u);
  EXPECT_EQ(policy.seen[0].seq, a);
  EXPECT_EQ(policy.seen[1].tokens, 16 * kB);
  EXPECT_EQ(policy.seen[1].unique_bytes, 16 * 512);
  EXPECT_EQ(policy.missing, 4096);
  EXPECT_TRUE(store.cache->exists(a) && store.cache->exists(b));
  policy.answer = 1;
  ASSERT_TRUE(store.append(d, 16 * kB).ok());
  EXPECT_TRUE(store.cache->exists(a));
  EXPECT_FALSE(store.cache->exists(b));
}

// Lowering the budget at run time evicts, then refuses; it ends nothing that runs.
TEST_F(EvictTest, LoweredBudgetEvictsThenRefuses) {
  const SeqId a = kept(8 * kB);
  const SeqId running = store.sequence_of(12 * kB);
  store.budget.set_limit({4096});
  store.cache->fit_to_budget();
  EXPECT_FALSE(store.cache->exists(a));
  EXPECT_TRUE(store.holds_its_window(running));
  EXPECT_EQ(store.append(running, 5 * kB).code(), Code::over_budget);
  // Memory that is committed already may be used: nothing more is taken.
  EXPECT_TRUE(store.append(running, 4 * kB).ok());
  store.budget.set_limit({4 * 4096});
  EXPECT_TRUE(store.append(running, 5 * kB).ok());
}

// --- faults: the k-th reservation or commit fails, for every k ---

// Uses everything that reserves. Each operation may be refused.
void scenario(SmallStore& store, const std::function<void(const Status&)>& done) {
  const FingerprintRotator rotator;
  KvCache& cache = *store.cache;
  const SeqId a = cache.create_sequence();
  done(store.append(a, 70));
  done(store.append(a, 30));
  const Result<SeqId> b = cache.fork(a);
  done(b.status());
  const SeqId c = cache.create_sequence();
  if (b) done(store.append({{.seq = a, .n_tokens = 60}, {.seq = *b, .n_tokens = 50}}));
  done(store.append(c, 48));
  const Result<SeqId> d = cache.fork(c);
  done(d.status());
  if (d && cache.length(*d) >= 44) done(cache.rewind(*d, 44));
  if (b) done(cache.seq_rm(*b, 3, 40));
  if (d) done(cache.seq_cp(c, *d, -1, -1));
  if (d) done(cache.seq_add(*d, 0, -1, 5, rotator));
  for (int i = 0; i < 10; ++i) done(store.append(c, 7));
}

void expect_clean(SmallStore& store) {
  store.cache->check_invariants();
  const SeqId last = store.cache->create_sequence();
  store.cache->seq_keep(last);
  store.cache->release(last);
  store.cache->check_invariants();
  EXPECT_EQ(store.budget.used().v, 0);
  EXPECT_EQ(store.memory.committed(), 0);
}

TEST(KvFaults, EveryRefusedReservationIsACleanError) {
  int64_t k = 0;
  for (bool was_reached = true; was_reached && k < 200; ++k) {
    SmallStore store(kB, {kGlobal, sliding(20)}, int64_t{1} << 20);
    store.budget.refuse_after(k);
    was_reached = false;
    scenario(store, [&](const Status& status) {
      store.cache->check_invariants();
      if (status.ok()) return;
      EXPECT_EQ(status.code(), Code::over_budget) << status.message();
      EXPECT_FALSE(was_reached);
      was_reached = true;
    });
    expect_clean(store);
  }
  EXPECT_GT(k, 10);
}

TEST(KvFaults, EveryFailedCommitIsACleanError) {
  int64_t k = 0;
  for (bool was_reached = true; was_reached && k < 200; ++k) {
    SmallStore store(kB, {kGlobal, sliding(20)}, int64_t{1} << 20);
    store.memory.fail_commit_after(k);
    was_reached = false;
    scenario(store, [&](const Status& status) {
      store.cache->check_invariants();
      if (status.ok()) return;
      EXPECT_EQ(status.code(), Code::io_error) << status.message();
      EXPECT_FALSE(was_reached);
      was_reached = true;
    });
    expect_clean(store);
  }
  EXPECT_GT(k, 5);
}

// And with every budget from nothing to enough: refusals leave the accounts right.
TEST(KvFaults, EveryBudgetIsHeld) {
  int64_t refused = 1;
  for (int64_t limit = 4096; refused > 0; limit += 4096) {
    SmallStore store(kB, {kGlobal, sliding(20)}, int64_t{1} << 20);
    store.budget.set_limit({limit});
    refused = 0;
    scenario(store, [&](const Status& status) {
      store.cache->check_invariants();
      EXPECT_LE(store.budget.peak().v, limit);
      refused += status.code() == Code::over_budget;
    });
    expect_clean(store);
    ASSERT_LT(limit, int64_t{1} << 19);
  }
}

}  // namespace
}  // namespace weir

#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include "kv/testing/small_store.h"

namespace weir {
namespace {

constexpr int kB = 16;

TEST(KvCache, RefusesWhatItCannotStore) {
  Budget budget({kMiB});
  FakeMemory memory;
  KvLayout layout = fingerprint_layout(kB, std::vector{kGlobal});
  const KvCacheOptions options{.address_space = {kMiB}, .extent = {5000}};
  EXPECT_EQ(KvCache::create(layout, budget, memory, options).status().code(), Code::invalid_input);
  memory.fail_reserve(true);
  EXPECT_EQ(KvCache::create(layout, budget, memory, {.address_space = {kMiB}}).status().code(),
            Code::io_error);
  EXPECT_EQ(budget.used().v, 0);
}

// Resident memory is what window.h says, for every length around every block and window edge.
TEST(KvCache, ResidentBytesAreTheFormulaAtEveryLength) {
  for (const int B : {16, 32}) {
    for (const Retention local :
         {sliding(1), sliding(2), sliding(B - 1), sliding(B), sliding(B + 1), sliding(3 * B + 1),
          sliding(1000), chunked(B), chunked(4 * B), chunked(B + 5)}) {
      for (const int64_t stride : {1, 3, 16, 50}) {
        SmallStore store(B, {kGlobal, local});
        const SeqId seq = store.sequence_of(0);
        for (int64_t n = stride; n <= 9 * B; n += stride) {
          ASSERT_TRUE(store.append(seq, stride).ok());
          ASSERT_EQ(store.cache->usage().resident(), store.planned(n)) << n;
          const KvGroup& g = store.cache->layout().groups[1];
          ASSERT_EQ(store.cache->usage().local, held_blocks(local, n, B) * g.block_bytes);
        }
      }
    }
  }
}

TEST(KvCache, ResidentBytesOfSeveralSequencesAddUp) {
  SmallStore store(kB, {kGlobal, sliding(20), sliding(40)});
  Bytes sum;
  std::vector<SeqId> sequences;
  for (const int64_t n : {1, 15, 16, 17, 33, 100}) {
    sequences.push_back(store.sequence_of(n, 9));
    sum += store.planned(n);
    EXPECT_EQ(store.cache->usage().resident(), sum);
  }
  for (const SeqId seq : sequences) store.cache->release(seq);
  EXPECT_EQ(store.cache->usage().resident().v, 0);
  EXPECT_EQ(store.budget.used().v, 0);
  EXPECT_EQ(store.memory.committed(), 0);
}

// Field case 14: shared rows count once; the ledger grows by the second one's own rows.
TEST(Fork, SharesFullBlocksAndCopiesTheOpenOnes) {
  SmallStore store(kB, {kGlobal, sliding(40)});
  const SeqId a = store.sequence_of(100);
  const Bytes before = store.cache->usage().resident();
  const SeqId b = store.cache->fork(a).value();
  store.cache->check_invariants();
  Bytes open;
  for (const KvGroup& g : store.cache->layout().groups) open += g.block_bytes;
  EXPECT_EQ(store.cache->usage().resident(), before + open);
  EXPECT_EQ(store.cache->length(b), 100);

  ASSERT_TRUE(store.append(a, 30).ok());
  EXPECT_TRUE(store.holds_its_window(a));
  EXPECT_TRUE(store.holds_its_window(b));
  store.cache->release(a);
  EXPECT_EQ(store.cache->usage().resident(), store.planned(100));
  EXPECT_TRUE(store.holds_its_window(b));
  ASSERT_TRUE(store.append(b, 30).ok());
  EXPECT_TRUE(store.holds_its_window(b));
}

TEST(Fork, AtABlockBoundaryCostsNothing) {
  SmallStore store(kB, {kGlobal, sliding(40)});
  const SeqId a = store.sequence_of(96);
  const Bytes before = store.budget.used();
  const SeqId b = store.cache->fork(a).value();
  EXPECT_EQ(store.budget.used(), before);
  ASSERT_TRUE(store.append({{.seq = a, .n_tokens = 5}, {.seq = b, .n_tokens = 50}}).ok());
  EXPECT_TRUE(store.holds_its_window(a));
  EXPECT_TRUE(store.holds_its_window(b));
}

// Field case 10a: either every layer ends exactly at the target, or nothing has changed.
TEST(Rewind, IsAllOrNothing) {
  SmallStore store(kB, {kGlobal, sliding(8)});
  const SeqId seq = store.sequence_of(40, 1);
  const KvUsage before = store.cache->usage();
  // At 40 the window begins at 33: the local group keeps rows 32..39.
  EXPECT_EQ(store.cache->min_rewind(seq), 39);
  const Status status = store.cache->rewind(seq, 27);
  EXPECT_EQ(status.code(), Code::not_found);
  EXPECT_NE(status.message().find("39"), std::string::npos) << status.message();
  store.cache->check_invariants();
  EXPECT_EQ(store.cache->length(seq), 40);
  EXPECT_EQ(store.cache->usage().resident(), before.resident());
  EXPECT_TRUE(store.holds_its_window(seq));

  ASSERT_TRUE(store.cache->rewind(seq, 39).ok());
  EXPECT_EQ(store.cache->length(seq), 39);
  EXPECT_EQ(store.cache->next_position(seq), 39);
  EXPECT_TRUE(store.holds_its_window(seq));
  ASSERT_TRUE(store.append(seq, 20).ok());
  EXPECT_TRUE(store.holds_its_window(seq));
  EXPECT_EQ(store.cache->rewind(seq, 60).code(), Code::invalid_input);
  EXPECT_EQ(store.cache->rewind(seq, -1).code(), Code::invalid_input);
}

TEST(Rewind, ReachesEveryLengthThatMinRewindNames) {
  for (const Retention local : {sliding(1), sliding(2), sliding(16), sliding(17), sliding(49),
                                chunked(16), chunked(48), chunked(20)}) {
    for (int64_t n = 1; n <= 100; n += 3) {
      SmallStore store(kB, {kGlobal, local});
      const SeqId seq = store.sequence_of(n, 10);
      const int64_t least = store.cache->min_rewind(seq);
      ASSERT_LE(least, n);
      for (int64_t to = n; to >= least; --to) {
        const SeqId copy = store.cache->fork(seq).value();
        ASSERT_TRUE(store.cache->rewind(copy, to).ok()) << n << " " << to;
        store.cache->check_invariants();
        ASSERT_TRUE(store.holds_its_window(copy)) << n << " " << to;
        ASSERT_TRUE(store.append(copy, 5).ok());
        ASSERT_TRUE(store.holds_its_window(copy));
        store.cache->release(copy);
      }
      ASSERT_TRUE(store.holds_its_window(seq));
    }
  }
}

// A chunk's end needs nothing of the chunk: every one of them can be returned to.
TEST(Rewind, ReachesEveryChunkBoundary) {
  SmallStore store(kB, {kGlobal, chunked(32)});
  const SeqId seq = store.sequence_of(150);
  EXPECT_EQ(store.cache->min_rewind(seq), 128);
  EXPECT_EQ(store.cache->rewind(seq, 80).code(), Code::not_found);
  ASSERT_TRUE(store.cache->rewind(seq, 64).ok());
  store.cache->check_invariants();
  EXPECT_EQ(store.cache->usage().resident(), store.planned(64));
  ASSERT_TRUE(store.append(seq, 40).ok());
  EXPECT_TRUE(store.holds_its_window(seq));
}

TEST(Rewind, IntoASharedBlockCopiesIt) {
  SmallStore store(kB, {kGlobal});
  const SeqId a = store.sequence_of(64);
  const SeqId b = store.cache->fork(a).value();
  ASSERT_TRUE(store.cache->rewind(b, 40).ok());
  store.cache->check_invariants();
  EXPECT_EQ(store.cache->usage().global, 5 * store.cache->layout().groups[0].block_bytes);
  ASSERT_TRUE(store.append(b, 3).ok());
  EXPECT_TRUE(store.holds_its_window(a));
  EXPECT_TRUE(store.holds_its_window(b));
}

// A rewind that frees blocks must not fail for want of one.
TEST(Rewind, TakesNoMemoryWhereABlockOfItsOwnGoes) {
  SmallStore store(kB, {kGlobal}, 2 * 4096);  // sixteen blocks of 512 bytes
  const SeqId a = store.sequence_of(64);
  const SeqId b = store.cache->fork(a).value();
  ASSERT_TRUE(store.append(b, 12 * kB).ok());
  EXPECT_EQ(store.cache->usage().committed_free.v, 0);
  store.budget.set_limit({100});
  ASSERT_TRUE(store.cache->rewind(b, 40).ok());
  store.cache->check_invariants();
  EXPECT_TRUE(store.holds_its_window(a));
  EXPECT_TRUE(store.holds_its_window(b));
}

TEST(Rewind, WithoutMemoryForTheCopyChangesNothing) {
  SmallStore store(kB, {kGlobal}, 4096);
  const SeqId a = store.sequence_of(8 * kB);
  const SeqId b = store.cache->fork(a).value();
  EXPECT_EQ(store.cache->rewind(b, 40).code(), Code::over_budget);
  store.cache->check_invariants();
  EXPECT_EQ(store.cache->length(b), 8 * kB);
  EXPECT_TRUE(store.holds_its_window(b));
  ASSERT_TRUE(store.cache->rewind(b, 48).ok());  // a boundary needs no copy
}

}  // namespace
}  // namespace weir

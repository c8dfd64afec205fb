// Field cases of reuse, on the store alone.
#include <gtest/gtest.h>

#include "geometry/window.h"
#include "kv/testing/prefix_store.h"

namespace weir {
namespace {

// Field case 11: what is left of an idle branch is reusable, or gone.
TEST(FieldCases, AnIdleBranchKeepsWhatMakesItReusableOrNothing) {
  const KvLayout layout = fingerprint_layout(4, std::vector{kGlobal, sliding(8)}, 1);
  PrefixStore probe(layout);
  probe.keep(tokens_from(0, 100), {96});
  const int64_t one = probe.budget.used().v;
  // Room for about one and a half conversations of 100 tokens.
  PrefixStore store(layout, (one + one / 2) / 4096 * 4096 + 4096, 0);
  store.keep(tokens_from(0, 100), {96});
  const SeqId second = store.create();
  const Tokens other = tokens_from(1000, 100);
  for (size_t at = 0; at < other.size(); at += 5) {
    ASSERT_TRUE(store
                    .append(second, Tokens(other.begin() + static_cast<ptrdiff_t>(at),
                                           other.begin() + static_cast<ptrdiff_t>(at) + 5))
                    .ok());
    const PrefixMatch left = store.cache->match(PrefixStore::kDefault, tokens_from(0, 101));
    const Bytes kept = store.cache->usage().idle + store.cache->usage().restart;
    // Nothing is kept that no prompt can use.
    if (left.tokens == 0) {
      EXPECT_EQ(kept.v, 0);
    }
    if (kept.v > 0) {
      EXPECT_GT(left.tokens, 0);
    }
  }
  EXPECT_EQ(store.cache->length(second), 100);
}

// Field case 12: blocks and windows of any lengths; behind a boundary that a prompt restarts at
// there is the whole window, and in the end nothing is left.
TEST(FieldCases, BlocksAndWindowsNeedNotDivideEachOther) {
  for (const int block : {1, 4, 16, 64}) {
    for (const int64_t window : {4, 8, 127}) {
      PrefixStore store(block, {kGlobal, sliding(window)});
      const Bytes baseline = store.budget.used();
      for (int64_t n = 1; n <= 300; n += n < 20 ? 1 : 13) {
        const Tokens prompt = tokens_from(static_cast<int32_t>(1000 * n), n);
        const SeqId seq = store.start(prompt);
        const int64_t end = n / block * block;
        store.read(seq, prompt, 7, end > 0 ? std::vector<int64_t>{end} : std::vector<int64_t>{});
        for (int i = 0; i < 10; ++i) ASSERT_TRUE(store.append(seq, {-1 - i}).ok());
        store.release(seq);

        const Tokens again = prompt + Tokens{-1};
        const SeqId back = store.start(again);
        EXPECT_EQ(store.match.tokens, end) << block << " " << window << " " << n;
        EXPECT_EQ(store.match.heal_tokens, 0);
        for (size_t g = 0; g < 2; ++g) {
          const Retention r = store.cache->layout().groups[g].retention;
          EXPECT_LE(store.cache->first_held_row(back, g), first_visible(r, end));
        }
        store.read(back, again);
        for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
        store.release(back);
        store.cache->drop(PrefixStore::kDefault, again, 0);
        store.cache->drop(PrefixStore::kDefault, prompt + Tokens{-1, -2, -3, -4}, 0);
      }
      store.cache->close_namespace(PrefixStore::kDefault);
      store.cache->check_invariants();
      EXPECT_EQ(store.cache->evictable().v, 0);
      EXPECT_LE(store.budget.used(), baseline + store.budget.used(Tag::metadata));
    }
  }
}

// Field case 13: two windows and a global group; all groups start at one boundary.
TEST(FieldCases, OneStartingPointForAllLayers) {
  PrefixStore store(16, {kGlobal, sliding(4), sliding(16)});
  store.keep(tokens_from(0, 70), {48});
  const Tokens prompt = tokens_from(0, 64) + tokens_from(500, 10);
  const SeqId seq = store.start(prompt);
  EXPECT_EQ(store.match.tokens - store.match.heal_tokens, store.cache->length(seq));
  // Stored in the global layers up to 64; the windows before 64 went with their sequence.
  EXPECT_LE(store.match.group_tokens[1], 64);
  store.read(seq, prompt);
  for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);

  // Between the two windows in length.
  PrefixStore small(4, {kGlobal, sliding(4), sliding(16)});
  small.keep(tokens_from(0, 11), {8});
  const SeqId between = small.start(tokens_from(0, 10));
  EXPECT_EQ(small.cache->length(between), 8);
  small.read(between, tokens_from(0, 10));
  for (const bool is_right : small.is_right) EXPECT_TRUE(is_right);
}

}  // namespace
}  // namespace weir

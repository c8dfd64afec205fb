// Prefixes shared between conversations: matching, restart points, healing.
#include <gtest/gtest.h>

#include "geometry/replay.h"
#include "kv/testing/prefix_store.h"

namespace weir {
namespace {

constexpr int kB = 4;
constexpr int kBlocks = 39;

TEST(Prefix, ASecondPromptReadsOnlyWhatIsNew) {
  PrefixStore store(kB, {kGlobal});
  store.keep(tokens_from(0, 22));
  EXPECT_EQ(store.cache->usage().idle, 5 * store.cache->layout().groups[0].block_bytes);
  EXPECT_EQ(store.cache->usage().resident().v, 0);
  const Tokens prompt = tokens_from(0, 22) + tokens_from(100, 10);
  const SeqId seq = store.start(prompt);
  EXPECT_EQ(store.match.tokens, 20);
  EXPECT_EQ(store.match.reason, MissReason::never_stored);
  EXPECT_EQ(store.match.lost, 0);
  EXPECT_EQ(store.cache->length(seq), 20);
  store.read(seq, prompt);
  for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
}

// The last token is computed even if the whole prompt is known.
TEST(Prefix, AlwaysLeavesATokenToCompute) {
  PrefixStore store(kB, {kGlobal});
  store.keep(tokens_from(0, 20));
  EXPECT_EQ(store.cache->match(PrefixStore::kDefault, tokens_from(0, 20)).tokens, 16);
  EXPECT_EQ(store.cache->match(PrefixStore::kDefault, tokens_from(0, 21)).tokens, 20);
  EXPECT_EQ(store.cache->match(PrefixStore::kDefault, tokens_from(0, 21)).reason, MissReason::none);
  EXPECT_EQ(store.cache->match(PrefixStore::kDefault, {}).tokens, 0);
}

TEST(Prefix, RunningSequencesShareTheirFullBlocks) {
  PrefixStore store(kB, {kGlobal, sliding(5)});
  const SeqId a = store.create();
  store.read(a, tokens_from(0, 18));
  const Bytes before = store.cache->usage().resident();
  // The window before 16 is held by the running sequence.
  const SeqId b = store.start(tokens_from(0, 17));
  EXPECT_EQ(store.match.tokens, 16);
  EXPECT_EQ(store.match.heal_tokens, 0);
  EXPECT_EQ(store.cache->usage().resident(), before);
  store.read(b, tokens_from(0, 16) + tokens_from(50, 9));
  for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
}

// Blocks that are changed in place are no longer what their prefix says.
TEST(Prefix, MovedBlocksLoseTheirName) {
  const FingerprintRotator rotator;
  for (const bool by_removal : {false, true}) {
    PrefixStore store(kB, {kGlobal, sliding(5)});
    const SeqId a = store.create();
    store.read(a, tokens_from(0, 18));
    ASSERT_EQ(store.cache->match(PrefixStore::kDefault, tokens_from(0, 17)).first_computed(), 16);
    const Status status =
        by_removal ? store.cache->seq_rm(a, 14, 15) : store.cache->seq_add(a, 13, -1, 3, rotator);
    ASSERT_TRUE(status.ok()) << status.message();
    store.cache->check_invariants();
    EXPECT_FALSE(store.cache->is_named(a));
    const SeqId b = store.start(tokens_from(0, 17));
    EXPECT_LT(store.cache->length(b), 16);
    store.read(b, tokens_from(0, 17));
    for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
  }
}

TEST(Prefix, NamespacesShareNothing) {
  PrefixStore store(kB, {kGlobal});
  store.keep(tokens_from(0, 22));
  const NamespaceId other = store.cache->open_namespace();
  EXPECT_EQ(store.cache->match(other, tokens_from(0, 22)).tokens, 0);
  store.keep(tokens_from(0, 22), {}, other);
  EXPECT_EQ(store.cache->usage().idle, 10 * store.cache->layout().groups[0].block_bytes);
  store.cache->close_namespace(other);
  store.cache->check_invariants();
  EXPECT_EQ(store.cache->usage().idle, 5 * store.cache->layout().groups[0].block_bytes);
}

TEST(Prefix, EqualHashesDoNoHarm) {
  PrefixStore store(fingerprint_layout(kB, std::vector{kGlobal}), int64_t{1} << 20, 64, 0);
  store.keep(tokens_from(0, 22));
  store.keep(tokens_from(100, 22));
  EXPECT_EQ(store.cache->match(PrefixStore::kDefault, tokens_from(100, 22)).tokens, 20);
  EXPECT_EQ(store.cache->match(PrefixStore::kDefault, tokens_from(300, 22)).tokens, 0);
}

// Two sequences that read the same prompt side by side end up with one copy of it.
TEST(Prefix, EqualBlocksAreKeptOnce) {
  PrefixStore store(kB, {kGlobal, sliding(5)});
  const SeqId a = store.create(), b = store.create();
  store.read(a, tokens_from(0, 18));
  store.read(b, tokens_from(0, 18));
  EXPECT_EQ(store.cache->counters().duplicates, 4 + 1);
  EXPECT_EQ(store.cache->counters().duplicates_differ, 0);
  store.release(a);
  store.read(b, tokens_from(0, 30));
  for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
}

// --- restart points ---

TEST(Restart, KeepsTheWindowBeforeABoundary) {
  PrefixStore store(kB, {kGlobal, sliding(6)}, 3);
  store.keep(tokens_from(0, 50), {24, 48});
  const auto at = [&](int64_t n) {
    return store.cache->match(PrefixStore::kDefault, tokens_from(0, n));
  };
  EXPECT_EQ(at(60).tokens, 48);
  EXPECT_EQ(at(49).tokens, 48);
  EXPECT_EQ(at(60).group_tokens, (std::vector<int64_t>{48, 48}));
  // Between the points: healing from 32 needs 13 or more tokens, the point at 24 fewer.
  EXPECT_EQ(at(36).first_computed(), 24);
  EXPECT_EQ(at(36).reason, MissReason::window_gone);
  EXPECT_EQ(at(36).lost, 8);
  const SeqId seq = store.start(tokens_from(0, 30));
  EXPECT_EQ(store.cache->length(seq), 24);
  store.read(seq, tokens_from(0, 24) + tokens_from(80, 20), 7);
  for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
}

TEST(Restart, WithoutOneNothingThatIsWorthlessStays) {
  PrefixStore store(kB, {kGlobal, sliding(30)}, 2);
  store.keep(tokens_from(0, 50));
  EXPECT_EQ(store.cache->usage().idle.v, 0);
  EXPECT_EQ(store.cache->match(PrefixStore::kDefault, tokens_from(0, 50)).reason,
            MissReason::evicted);
  EXPECT_EQ(store.cache->match(PrefixStore::kDefault, tokens_from(0, 50)).lost, 48);
  store.keep(tokens_from(0, 50), {20});
  EXPECT_EQ(store.cache->usage().idle, 5 * store.cache->layout().groups[0].block_bytes);
}

TEST(Restart, TheLatestMovesAlong) {
  for (const int64_t chunk : {1, 3, 4, 50, 1000}) {
    PrefixStore store(kB, {kGlobal, sliding(30)}, 2);
    const SeqId seq = store.create();
    store.cache->keep_latest(seq, true);
    store.read(seq, tokens_from(0, 103), chunk);
    store.release(seq);
    EXPECT_EQ(store.cache->match(PrefixStore::kDefault, tokens_from(0, 103)).tokens, 100);
    const KvGroup& local = store.cache->layout().groups[1];
    EXPECT_EQ(store.cache->usage().restart,
              restart_blocks(sliding(30), 100, kB) * local.block_bytes);
  }
}

// --- healing ---

// At a chunk's start nothing local is read: it is a restart point that costs nothing.
TEST(Restart, ChunkStartsAreFree) {
  PrefixStore store(kB, {kGlobal, chunked(16)}, 3);
  store.keep(tokens_from(0, 63));
  EXPECT_EQ(store.cache->usage().restart.v, 0);
  const SeqId seq = store.start(tokens_from(0, 63));
  EXPECT_EQ(store.match.tokens, 48);
  EXPECT_EQ(store.match.heal_tokens, 0);
  store.read(seq, tokens_from(0, 63));
  for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
}

struct HealCase {
  int B;
  std::vector<Retention> groups;
  int layers;
};

class Heal : public testing::TestWithParam<HealCase> {};

// Local rows that are computed again from the formula's start are those of the whole prefix, in
// every layer, and so is what the model says from the boundary on.
TEST_P(Heal, FromTheFormulasStartIsExact) {
  const auto [B, groups, layers] = GetParam();
  for (const int64_t chunk : {1, 3, 1000}) {
    PrefixStore store(B, groups, layers);
    const Tokens known = tokens_from(0, kBlocks * B + 1);
    store.keep(known);
    const PrefixMatch match = store.cache->match(PrefixStore::kDefault, known);
    ASSERT_EQ(match.tokens, kBlocks * B);
    ASSERT_GT(match.heal_tokens, 0);
    EXPECT_EQ(match.first_computed(), replay_start(store.cache->layout(), kBlocks * B));
    EXPECT_EQ(match.reason, MissReason::window_gone);
    EXPECT_EQ(match.lost, match.heal_tokens);
    const SeqId seq = store.start(known);
    EXPECT_EQ(store.cache->replay_end(seq), kBlocks * B);
    const Tokens prompt = known + tokens_from(9000, 3 * B);
    store.read(seq, prompt, chunk, {kBlocks * B});
    EXPECT_EQ(store.cache->replay_end(seq), 0);
    for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
    EXPECT_EQ(store.cache->counters().duplicates_differ, 0);
    store.release(seq);
    // What healing published serves others.
    const SeqId other = store.start(known + tokens_from(5000, 5));
    EXPECT_EQ(store.match.tokens, kBlocks * B);
    EXPECT_EQ(store.match.heal_tokens, 0);
    store.read(other, known + tokens_from(5000, 5));
    for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
  }
}

TEST_P(Heal, ABlockLaterIsNot) {
  const auto [B, groups, layers] = GetParam();
  PrefixStore store(B, groups, layers);
  const Tokens known = tokens_from(0, kBlocks * B + 1);
  store.keep(known);
  PrefixMatch match = store.cache->match(PrefixStore::kDefault, known);
  match.heal_tokens -= B;
  const SeqId seq = store.cache->resume(PrefixStore::kDefault, known, match).value();
  store.tokens[seq] = Tokens(known.begin(), known.begin() + match.first_computed());
  store.read(seq, Tokens(known.begin(), known.begin() + kBlocks * B));
  bool is_wrong = false;
  for (const KvGroup& g : store.cache->layout().groups) {
    const StepTable table = store.cache->held_table(seq, static_cast<size_t>(g.id));
    for (size_t i = 0; i < table.blocks.size(); ++i) {
      for (int row = 0; row < B; ++row) {
        const size_t at = static_cast<size_t>(table.first_row) + i * static_cast<size_t>(B);
        const Fingerprint print = prints_of(known)[at + static_cast<size_t>(row)];
        is_wrong = is_wrong || !has_fingerprint(g, table.blocks[i].memory, row, print);
      }
    }
  }
  EXPECT_TRUE(is_wrong) << match.heal_tokens;
}

TEST_P(Heal, AnAbortedOneLeavesNothingBehind) {
  const auto [B, groups, layers] = GetParam();
  PrefixStore store(B, groups, layers);
  const Tokens known = tokens_from(0, kBlocks * B + 1);
  store.keep(known);
  const KvUsage before = store.cache->usage();
  const SeqId seq = store.start(known);
  ASSERT_TRUE(store.append(seq, {known[static_cast<size_t>(store.cache->length(seq))]}).ok());
  EXPECT_EQ(store.cache->fork(seq).status().code(), Code::invalid_input);
  EXPECT_EQ(store.cache->rewind(seq, 1).code(), Code::invalid_input);
  EXPECT_FALSE(store.cache->mark_restart(seq, RestartKind::client));
  store.release(seq);
  EXPECT_EQ(store.cache->usage().idle, before.idle);
  EXPECT_EQ(store.cache->usage().restart.v, 0);
  EXPECT_EQ(store.cache->usage().resident().v, 0);
}

TEST_P(Heal, AStepMustNotCrossItsEnd) {
  const auto [B, groups, layers] = GetParam();
  PrefixStore store(B, groups, layers);
  const Tokens known = tokens_from(0, kBlocks * B + 1);
  store.keep(known);
  const SeqId seq = store.start(known);
  const Tokens rest(known.begin() + store.cache->length(seq), known.end());
  const Status status = store.append(seq, rest);
  EXPECT_EQ(status.code(), Code::invalid_input);
  EXPECT_NE(status.message().find(std::to_string(kBlocks * B)), std::string::npos)
      << status.message();
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Heal,
    testing::Values(HealCase{4, {kGlobal, sliding(6)}, 2}, HealCase{4, {kGlobal, sliding(5)}, 3},
                    HealCase{4, {sliding(5), kGlobal}, 3}, HealCase{4, {kGlobal, sliding(2)}, 4},
                    HealCase{1, {kGlobal, sliding(4)}, 3}, HealCase{16, {kGlobal, sliding(17)}, 4},
                    HealCase{4, {kGlobal, sliding(3), sliding(9)}, 2},
                    HealCase{4, {kGlobal, sliding(5), chunked(20)}, 2},
                    HealCase{4, {kGlobal, chunked(7)}, 3}));

}  // namespace
}  // namespace weir

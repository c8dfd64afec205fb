// Failures that people have met in the field, as far as the KV store can have them. T1: window 8;
// T3: chunks of 8; both with a global group.
#include <gtest/gtest.h>

#include "kv/testing/small_store.h"

namespace weir {
namespace {

std::vector<Retention> t1() { return {kGlobal, sliding(8)}; }
std::vector<Retention> t3() { return {kGlobal, chunked(8)}; }

// Positions that the next query reads in a group, itself left out.
std::vector<int64_t> read_positions(const SmallStore& store, SeqId seq, size_t group) {
  const KvGroup& g = store.cache->layout().groups[group];
  const StepTable table = store.cache->held_table(seq, group);
  std::vector<int64_t> positions;
  for (int64_t row = first_visible(g.retention, table.n_past); row < table.n_past; ++row) {
    const int64_t index = (row - table.first_row) / g.block_tokens;
    if (row < table.first_row || index >= static_cast<int64_t>(table.blocks.size())) continue;
    if (has_fingerprint(g, table.blocks[static_cast<size_t>(index)].memory,
                        static_cast<int>(row % g.block_tokens), SmallStore::print(row))) {
      positions.push_back(row);
    }
  }
  return positions;
}

std::vector<int64_t> newest(int64_t length, int64_t count) {
  std::vector<int64_t> positions;
  for (int64_t p = std::max<int64_t>(0, length - count); p < length; ++p) positions.push_back(p);
  return positions;
}

// Field case 1: eviction starts exactly one token after the window is full.
TEST(FieldCases, EvictionStartsOneTokenAfterTheWindowIsFull) {
  for (const int B : {1, 4, 16}) {
    SmallStore store(B, t1());
    const SeqId seq = store.sequence_of(6);
    for (int64_t length = 6; length <= 24; ++length) {
      // The query at `length` reads itself and the newest seven before it.
      EXPECT_EQ(read_positions(store, seq, 1), newest(length, 7)) << B << " " << length;
      EXPECT_EQ(read_positions(store, seq, 0), newest(length, length));
      ASSERT_TRUE(store.append(seq, 1).ok());
    }
  }
  // With blocks of one row nothing but the window is held, and nothing goes while it is not full.
  SmallStore store(1, t1());
  const SeqId seq = store.sequence_of(0);
  for (int64_t length = 1; length <= 24; ++length) {
    ASSERT_TRUE(store.append(seq, 1).ok());
    EXPECT_EQ(store.cache->held_table(seq, 1).blocks.size(),
              static_cast<size_t>(std::min<int64_t>(length, 7)));
  }
}

// Field case 2: positions and rows stay right over many turns.
TEST(FieldCases, PositionsRiseByOneAndRowsStayUnderTheCapOverManyTurns) {
  SmallStore store(16, t1());
  const SeqId seq = store.sequence_of(0);
  const Bytes cap =
      max_held_blocks(sliding(8), 1 << 20, 16) * store.cache->layout().groups[1].block_bytes;
  int64_t position = 0;
  for (int turn = 0; turn < 40; ++turn) {
    for (const int64_t n : {5, 1, 1, 1}) {
      const std::vector<StepItem> items = {{.seq = seq, .n_tokens = n}};
      {
        const Step step = store.cache->plan_step(items).value();
        for (const int64_t p : step.positions(0)) EXPECT_EQ(p, position++);
      }
      ASSERT_TRUE(store.append(seq, n).ok());
      EXPECT_LE(store.cache->usage().local, cap);
      EXPECT_EQ(store.cache->usage().resident(), store.planned(position));
    }
    EXPECT_TRUE(store.holds_its_window(seq));
  }
}

// Field case 3: length is a property of the conversation, not of a layer.
TEST(FieldCases, LengthIsTheSameWhateverGroupComesFirst) {
  for (const std::vector<Retention>& order : {t1(), {sliding(8), kGlobal}, {sliding(8)}}) {
    SmallStore store(16, order);
    const SeqId seq = store.sequence_of(24);
    EXPECT_EQ(store.cache->length(seq), 24);
    EXPECT_EQ(store.cache->next_position(seq), 24);
    for (int i = 0; i < 8; ++i) {
      const std::vector<StepItem> items = {{.seq = seq, .n_tokens = 1}};
      Step step = store.cache->plan_step(items).value();
      EXPECT_EQ(step.positions(0), std::vector<int64_t>{24 + i});
      for (size_t g = 0; g < order.size(); ++g) EXPECT_EQ(step.table(0, g).n_past, 24 + i);
      step.commit();
    }
    EXPECT_EQ(store.cache->length(seq), 32);
  }
}

// Field case 4: chunked attention is not sliding attention, and blocks longer than a chunk lose
// none.
TEST(FieldCases, EachQueryReadsAsManyKeysAsItsKindSays) {
  SmallStore chunks(16, t3()), slides(16, t1());
  const SeqId c = chunks.sequence_of(0), s = slides.sequence_of(0);
  for (int64_t p = 0; p < 40; ++p) {
    // Rows before the query; with itself p mod 8 + 1 and min(p + 1, 8).
    EXPECT_EQ(read_positions(chunks, c, 1), newest(p, p % 8));
    EXPECT_EQ(read_positions(slides, s, 1), newest(p, 7));
    EXPECT_EQ(read_positions(chunks, c, 0), newest(p, p));
    ASSERT_TRUE(chunks.append(c, 1).ok());
    ASSERT_TRUE(slides.append(s, 1).ok());
  }
}

// Field case 19: growth has no hidden double. The budget is the exact need at length n.
TEST(FieldCases, GrowthStaysWithinTheExactBudget) {
  constexpr int64_t kN = 1024;
  for (const std::vector<Retention>& groups :
       {std::vector{kGlobal}, t1(), t3(), {kGlobal, sliding(100)}, {kGlobal, chunked(64)}}) {
    for (const int64_t step : {1, 7, 256}) {
      // Blocks are an extent each, so that the need is the blocks and nothing else: the window and
      // the global rows at the end, or at the step with the most old and new local blocks together.
      KvLayout layout = fingerprint_layout(16, groups, 2, 4);
      for (const KvGroup& g : layout.groups) ASSERT_EQ(g.block_bytes.v, 4096);
      int64_t need = 0;
      for (int64_t n = 0; n < kN; n += step) {
        const int64_t c = std::min(step, kN - n);
        int64_t blocks = 0;
        for (const Retention r : groups) {
          blocks += held_blocks(r, n, 16) + step_new_blocks(r, n, c, 16);
        }
        need = std::max(need, blocks * 4096);
      }
      SmallStore store(std::move(layout), need);
      const SeqId seq = store.sequence_of(kN, step);
      EXPECT_LE(store.budget.peak().v, need);
      EXPECT_EQ(store.budget.peak().v, need);
      EXPECT_TRUE(store.holds_its_window(seq));
      // As much again is refused, and nothing is lost.
      if (groups.size() == 1) {
        const Status status = store.append(seq, 1);
        EXPECT_EQ(status.code(), Code::over_budget) << status.message();
      }
      EXPECT_EQ(store.append(seq, kN).code(), Code::over_budget);
      EXPECT_EQ(store.cache->length(seq), kN);
      EXPECT_TRUE(store.holds_its_window(seq));
      store.cache->check_invariants();
    }
  }
}

// Field case 25: conversations of unlike lengths in one step are as they are alone.
TEST(FieldCases, RaggedBatchesAreAsEachAlone) {
  SmallStore store(16, t1());
  std::vector<SeqId> sequences;
  std::vector<int64_t> lengths = {1, 7, 8, 9, 40};
  for (const int64_t n : lengths) sequences.push_back(store.sequence_of(n));
  for (int i = 0; i < 30; ++i) {
    std::vector<StepItem> items;
    Bytes planned;
    for (size_t s = 0; s < sequences.size(); ++s) {
      items.push_back({.seq = sequences[s], .n_tokens = 1});
      planned += store.planned(++lengths[s]);
    }
    ASSERT_TRUE(store.append(items).ok());
    EXPECT_EQ(store.cache->usage().resident(), planned);  // padding never occupies a row
    for (const SeqId seq : sequences) EXPECT_TRUE(store.holds_its_window(seq));
    if (i == 10) {  // one leaves, two join with prompts of 3 and 50
      store.cache->release(sequences[2]);
      sequences.erase(sequences.begin() + 2);
      lengths.erase(lengths.begin() + 2);
      const SeqId a = store.sequence_of(0), b = store.sequence_of(0);
      ASSERT_TRUE(store.append({{.seq = a, .n_tokens = 3}, {.seq = b, .n_tokens = 50}}).ok());
      sequences.insert(sequences.end(), {a, b});
      lengths.insert(lengths.end(), {3, 50});
    }
  }
}

}  // namespace
}  // namespace weir

// Sequence operations with llama.cpp's meaning.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv/testing/small_store.h"

namespace weir {
namespace {

constexpr int kB = 16;

// The rows that the store holds are those of `rows` at `positions`, from the first held one on.
void expect_rows(const SmallStore& store, SeqId seq, const std::vector<int64_t>& rows,
                 const std::vector<int64_t>& positions) {
  store.cache->check_invariants();
  ASSERT_EQ(store.cache->length(seq), static_cast<int64_t>(rows.size()));
  for (const KvGroup& g : store.cache->layout().groups) {
    const size_t group = static_cast<size_t>(g.id);
    const StepTable table = store.cache->held_table(seq, group);
    const int64_t first = store.cache->first_held_row(seq, group);
    for (int64_t row = first; row < static_cast<int64_t>(rows.size()); ++row) {
      Fingerprint print = SmallStore::print(rows[static_cast<size_t>(row)]);
      print.position = positions[static_cast<size_t>(row)];
      const size_t index = static_cast<size_t>((row - table.first_row) / kB);
      ASSERT_TRUE(has_fingerprint(g, table.blocks[index].memory, static_cast<int>(row % kB), print))
          << "row " << row;
    }
  }
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> all;
  for (int64_t i = begin; i < end; ++i) all.push_back(i);
  return all;
}

std::vector<int64_t> operator+(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(SeqRm, TailIsARewind) {
  SmallStore store(kB, {kGlobal, sliding(20)});
  const SeqId seq = store.sequence_of(50);
  ASSERT_TRUE(store.cache->seq_rm(seq, 45, -1).ok());
  EXPECT_EQ(store.cache->length(seq), 45);
  EXPECT_FALSE(store.cache->is_inexact(seq));
  ASSERT_TRUE(store.cache->seq_rm(seq, 45, 100).ok());  // nothing there
  EXPECT_EQ(store.cache->seq_rm(seq, 10, -1).code(), Code::not_found);
  ASSERT_TRUE(store.cache->seq_rm(seq, -1, -1).ok());
  EXPECT_EQ(store.cache->length(seq), 0);
  EXPECT_EQ(store.cache->seq_pos_max(seq), -1);
  EXPECT_EQ(store.budget.used().v, 0);
}

TEST(SeqRm, MiddleKeepsPositionsAndMovesRows) {
  SmallStore store(kB, {kGlobal, sliding(20)});
  const SeqId seq = store.sequence_of(70);
  ASSERT_TRUE(store.cache->seq_rm(seq, 5, 12).ok());
  const auto rows = range(0, 5) + range(12, 70);
  expect_rows(store, seq, rows, rows);
  EXPECT_TRUE(store.cache->is_inexact(seq));
  EXPECT_EQ(store.cache->next_position(seq), 70);
  EXPECT_EQ(store.cache->seq_pos_max(seq), 69);
}

// The context shift of other engines: drop an old part, move the rest down.
TEST(SeqAdd, ContextShiftMovesKeysDown) {
  SmallStore store(kB, {kGlobal, sliding(20)});
  const FingerprintRotator rotator;
  const SeqId seq = store.sequence_of(70);
  ASSERT_TRUE(store.cache->seq_rm(seq, 4, 34).ok());
  ASSERT_TRUE(store.cache->seq_add(seq, 34, -1, -30, rotator).ok());
  EXPECT_FALSE(rotator.is_wrong());
  expect_rows(store, seq, range(0, 4) + range(34, 70), range(0, 40));
  EXPECT_EQ(store.cache->next_position(seq), 40);
  EXPECT_TRUE(store.cache->is_inexact(seq));
}

// Kernels see by position, whatever the rows are.
TEST(SeqRm, TablesSayWhatAWindowOfPositionsSees) {
  SmallStore store(kB, {kGlobal, sliding(10), chunked(32)});
  const SeqId seq = store.sequence_of(30);
  ASSERT_TRUE(store.cache->seq_rm(seq, 22, 27).ok());  // rows 22, 23, 24 are positions 27, 28, 29
  const std::vector<StepItem> items = {{.seq = seq, .n_tokens = 4}};
  const Step step = store.cache->plan_step(items).value();
  EXPECT_TRUE(step.table(0, 0).first_visible_row.empty());
  // The query at 30 reads positions 21..30; that at 33 reads 24..33, of which 27 is row 22.
  EXPECT_EQ(step.table(0, 1).first_visible_row, (std::vector<int64_t>{21, 22, 22, 22}));
  // Positions 30 and 31 are in chunk 0, 32 and 33 in chunk 1, which begins with row 27.
  EXPECT_EQ(step.table(0, 2).first_visible_row, (std::vector<int64_t>{0, 0, 27, 27}));
  EXPECT_EQ(step.positions(0), (std::vector<int64_t>{30, 31, 32, 33}));
}

TEST(SeqAdd, RefusesPositionsThatDoNotAscend) {
  SmallStore store(kB, {kGlobal});
  const FingerprintRotator rotator;
  const SeqId seq = store.sequence_of(20);
  EXPECT_EQ(store.cache->seq_add(seq, 10, -1, -2, rotator).code(), Code::invalid_input);
  EXPECT_EQ(store.cache->seq_add(seq, 0, -1, -1, rotator).code(), Code::invalid_input);
  EXPECT_EQ(store.cache->seq_add(seq, 5, 10, 3, rotator).code(), Code::invalid_input);
  EXPECT_EQ(store.cache->seq_add(seq, 0, -1, INT64_MAX, rotator).code(), Code::invalid_input);
  EXPECT_EQ(store.cache->seq_add(seq, 0, -1, INT64_MIN, rotator).code(), Code::invalid_input);
  EXPECT_FALSE(store.cache->is_inexact(seq));
  EXPECT_TRUE(store.holds_its_window(seq));
  ASSERT_TRUE(store.cache->seq_add(seq, 0, -1, 7, rotator).ok());
  expect_rows(store, seq, range(0, 20), range(7, 27));
  EXPECT_EQ(store.cache->seq_pos_min(seq), 7);
}

TEST(SeqDiv, GroupsPositions) {
  SmallStore store(kB, {kGlobal});
  const FingerprintRotator rotator;
  const SeqId seq = store.sequence_of(40);
  ASSERT_TRUE(store.cache->seq_div(seq, 0, 32, 4, rotator).ok());
  ASSERT_TRUE(store.cache->seq_add(seq, 32, -1, -24, rotator).ok());
  std::vector<int64_t> positions;
  for (int64_t p = 0; p < 32; ++p) positions.push_back(p / 4);
  expect_rows(store, seq, range(0, 40), positions + range(8, 16));
  EXPECT_FALSE(rotator.is_wrong());
  EXPECT_EQ(store.cache->next_position(seq), 16);
  EXPECT_EQ(store.cache->seq_div(seq, 0, -1, 0, rotator).code(), Code::invalid_input);
}

// Rows that left a window are gone: positions that would bring them back are refused.
TEST(SeqDiv, RefusesToBringDroppedRowsIntoAWindow) {
  SmallStore store(kB, {kGlobal, sliding(8)});
  const FingerprintRotator rotator;
  const SeqId seq = store.sequence_of(64);
  const Bytes used = store.budget.used();
  EXPECT_EQ(store.cache->seq_div(seq, 0, -1, 4, rotator).code(), Code::not_found);
  store.cache->check_invariants();
  EXPECT_EQ(store.budget.used(), used);
  EXPECT_FALSE(store.cache->is_inexact(seq));
  EXPECT_TRUE(store.holds_its_window(seq));
}

TEST(SeqAdd, LeavesTheBlocksOfAForkAlone) {
  SmallStore store(kB, {kGlobal, sliding(20)});
  const FingerprintRotator rotator;
  const SeqId a = store.sequence_of(70);
  const SeqId b = store.cache->fork(a).value();
  ASSERT_TRUE(store.cache->seq_add(b, 0, -1, 100, rotator).ok());
  ASSERT_TRUE(store.cache->seq_rm(b, 120, 130).ok());
  EXPECT_TRUE(store.holds_its_window(a));
  expect_rows(store, b, range(0, 20) + range(30, 70), range(100, 120) + range(130, 170));
}

TEST(SeqRm, RewindBeforeTheFirstChangeIsExactAgain) {
  SmallStore store(kB, {kGlobal});
  const SeqId seq = store.sequence_of(50);
  ASSERT_TRUE(store.cache->seq_rm(seq, 20, 25).ok());
  ASSERT_TRUE(store.cache->rewind(seq, 21).ok());
  EXPECT_TRUE(store.cache->is_inexact(seq));
  ASSERT_TRUE(store.cache->rewind(seq, 20).ok());
  EXPECT_FALSE(store.cache->is_inexact(seq));
  ASSERT_TRUE(store.append(seq, 40).ok());
  EXPECT_TRUE(store.holds_its_window(seq));
}

TEST(SeqCp, ReplacesWhatTheTargetHeld) {
  SmallStore store(kB, {kGlobal, sliding(20)});
  const SeqId a = store.sequence_of(50), b = store.sequence_of(90);
  EXPECT_EQ(store.cache->seq_cp(a, b, 10, 20).code(), Code::unsupported);
  EXPECT_EQ(store.cache->length(b), 90);
  ASSERT_TRUE(store.cache->seq_cp(a, b, -1, -1).ok());
  store.cache->check_invariants();
  EXPECT_EQ(store.cache->length(b), 50);
  EXPECT_TRUE(store.holds_its_window(b));
  ASSERT_TRUE(store.cache->seq_cp(a, a, 0, 50).ok());
}

TEST(SeqKeep, ReleasesEveryOther) {
  SmallStore store(kB, {kGlobal, sliding(20)});
  const SeqId a = store.sequence_of(50), b = store.sequence_of(90), c = store.sequence_of(3);
  store.cache->seq_keep(b);
  EXPECT_FALSE(store.cache->exists(a));
  EXPECT_TRUE(store.cache->exists(b));
  EXPECT_FALSE(store.cache->exists(c));
  EXPECT_EQ(store.cache->usage().resident(), store.planned(90));
}

TEST(SeqPos, MinIsWhatAllGroupsHold) {
  SmallStore store(kB, {kGlobal, sliding(20), sliding(1)});
  const SeqId seq = store.sequence_of(0);
  EXPECT_EQ(store.cache->seq_pos_min(seq), -1);
  EXPECT_EQ(store.cache->seq_pos_max(seq), -1);
  ASSERT_TRUE(store.append(seq, 70).ok());
  EXPECT_EQ(store.cache->seq_pos_min(seq), 64);  // the open block of the window of one
  EXPECT_EQ(store.cache->seq_pos_max(seq), 69);
  ASSERT_TRUE(store.append(seq, 10).ok());
  EXPECT_EQ(store.cache->seq_pos_min(seq), 80);  // it holds nothing: everything from the next on
}

}  // namespace
}  // namespace weir

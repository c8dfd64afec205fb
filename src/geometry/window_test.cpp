#include "geometry/window.h"

#include <gtest/gtest.h>

#include <bitset>
#include <numeric>
#include <vector>

namespace weir {
namespace {

constexpr int64_t kMost = 48;

// The definition: does the query at position `query` read the key at position `key`?
bool reads(Retention r, int64_t query, int64_t key) {
  if (key > query) return false;
  switch (r.kind) {
    case LayerKind::global:
      return true;
    case LayerKind::sliding:
      return query - key < r.window;
    case LayerKind::chunked:
      return query / r.window == key / r.window;
  }
  return false;
}

std::vector<Retention> retentions(int64_t most) {
  std::vector<Retention> all = {{LayerKind::global, 0}};
  for (int64_t w = 1; w <= most; ++w) {
    all.push_back({LayerKind::sliding, w});
    all.push_back({LayerKind::chunked, w});
  }
  return all;
}

// The first row that any query from position n on reads, listed key by key.
int64_t first_read(Retention r, int64_t n) {
  for (int64_t key = 0; key <= n; ++key) {
    if (reads(r, n, key)) return key;
  }
  return n;
}

TEST(Window, VisibleRangeIsTheListOfKeysRead) {
  for (const Retention r : retentions(kMost)) {
    for (int64_t n = 0; n <= 3 * kMost; ++n) {
      int64_t count = 0;
      for (int64_t key = 0; key <= n; ++key) {
        const bool is_read = reads(r, n, key);
        count += is_read;
        ASSERT_EQ(is_read, key >= first_visible(r, n)) << n << " " << r.window;
      }
      ASSERT_EQ(visible_keys(r, n), count);
      ASSERT_LE(first_visible(r, n), first_visible(r, n + 1));  // what is dropped stays unread
    }
  }
}

// Field case 4: chunked attention is not sliding attention.
TEST(Window, ChunkedAndSlidingCountsOfKeys) {
  for (int64_t p = 0; p < 40; ++p) {
    EXPECT_EQ(visible_keys({LayerKind::chunked, 8}, p), p % 8 + 1);
    EXPECT_EQ(visible_keys({LayerKind::sliding, 8}, p), std::min<int64_t>(p + 1, 8));
    EXPECT_EQ(visible_keys({LayerKind::global, 0}, p), p + 1);
  }
}

using Blocks = std::bitset<128>;

// Blocks that hold a row which the query after n rows reads, and the open one.
Blocks blocks_wanted(Retention r, int64_t n, int64_t B) {
  Blocks blocks;
  const int64_t first = first_read(r, n);
  for (int64_t row = 0; row < n; ++row) {
    if (row >= first || row / B == n / B) blocks.set(static_cast<size_t>(row / B));
  }
  return blocks;
}

// The same for every n up to `most`.
std::vector<Blocks> blocks_wanted_up_to(Retention r, int64_t most, int64_t B) {
  std::vector<Blocks> blocks;
  for (int64_t n = 0; n <= most; ++n) blocks.push_back(blocks_wanted(r, n, B));
  return blocks;
}

int64_t count(const Blocks& blocks) { return static_cast<int64_t>(blocks.count()); }
int64_t first(const Blocks& blocks) {
  size_t i = 0;
  while (!blocks[i]) ++i;
  return static_cast<int64_t>(i);
}

TEST(Window, HeldBlocksAreThoseWithReadRowsAndTheOpenOne) {
  for (const Retention r : retentions(kMost)) {
    for (int64_t B = 1; B <= kMost; ++B) {
      for (int64_t n = 0; n <= 2 * kMost; ++n) {
        const Blocks blocks = blocks_wanted(r, n, B);
        ASSERT_EQ(held_blocks(r, n, B), count(blocks))
            << "kind " << static_cast<int>(r.kind) << " w " << r.window << " B " << B << " n " << n;
        if (blocks.any()) {
          ASSERT_EQ(first_needed_block(r, n, B), first(blocks));
        }
      }
    }
  }
}

TEST(Window, MaxHeldBlocksIsABoundAndTight) {
  for (const Retention r : retentions(kMost)) {
    for (int64_t B = 1; B <= kMost; ++B) {
      // Long enough for a window to have met every place in a block.
      const int64_t long_enough =
          r.kind == LayerKind::chunked ? std::lcm(r.window, B) + r.window : r.window + B;
      int64_t most = 0;
      for (int64_t n = 0; n <= long_enough; ++n) {
        most = std::max(most, held_blocks(r, n, B));
        ASSERT_LE(most, max_held_blocks(r, n, B)) << "w " << r.window << " B " << B << " n " << n;
      }
      ASSERT_EQ(most, max_held_blocks(r, long_enough, B))
          << "kind " << static_cast<int>(r.kind) << " w " << r.window << " B " << B;
      if (r.kind == LayerKind::sliding) ASSERT_LE(most, ceil_div(r.window - 1, B) + 1);
    }
  }
}

// A step stores the blocks that are held at its end and are new; older ones live in scratch.
TEST(Window, StepTakesTheBlocksThatAreHeldAfterItAndWereNotBefore) {
  for (const Retention r : retentions(kMost)) {
    std::vector<int64_t> first_row;
    for (int64_t n = 0; n <= 2 * kMost; ++n) first_row.push_back(first_read(r, n));
    for (int64_t B = 1; B <= kMost; ++B) {
      const std::vector<Blocks> wanted = blocks_wanted_up_to(r, 2 * kMost, B);
      for (int64_t n = 0; n <= kMost; ++n) {
        for (int64_t c = 1; c <= kMost; ++c) {
          const size_t end = static_cast<size_t>(n + c);
          const Blocks added = wanted[end] & ~wanted[static_cast<size_t>(n)];
          ASSERT_EQ(step_new_blocks(r, n, c, B), count(added))
              << "kind " << static_cast<int>(r.kind) << " w " << r.window << " B " << B << " n "
              << n << " c " << c;
          // The block that n is in, where a new row goes first, or the first one held at the end.
          ASSERT_EQ(first_stored_block(r, n, c, B), std::max(n / B, first_row[end] / B));
          if (added.any()) {
            ASSERT_LE(first_stored_block(r, n, c, B), first(added));
          }
        }
      }
    }
  }
}

// With drafts, whatever number is accepted, the blocks held then were old or stored.
TEST(Window, StepWithDraftsStoresTheWindowOfEveryPossibleEnd) {
  for (const Retention r : retentions(20)) {
    for (const int64_t B : {1, 2, 3, 4, 8, 16}) {
      const std::vector<Blocks> wanted = blocks_wanted_up_to(r, 33 + 24, B);
      for (int64_t n = 0; n <= 33; ++n) {
        for (int64_t c = 1; c <= 24; ++c) {
          Blocks possible;
          for (int64_t m = c; m >= 0; --m) {
            possible |= wanted[static_cast<size_t>(n + m)] & ~wanted[static_cast<size_t>(n)];
            Blocks stored;
            const int64_t end = ceil_div(n + c, B);
            for (int64_t i = end - step_new_blocks(r, n, c, m, B); i < end; ++i) {
              stored.set(static_cast<size_t>(i));
            }
            ASSERT_TRUE((possible & ~stored).none())
                << "w " << r.window << " B " << B << " n " << n << " c " << c << " m " << m;
            ASSERT_LE(count(stored), end - ceil_div(n, B));
          }
          ASSERT_EQ(step_new_blocks(r, n, c, c, B), step_new_blocks(r, n, c, B));
        }
      }
    }
  }
}

}  // namespace
}  // namespace weir

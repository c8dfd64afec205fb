#include "geometry/replay.h"

#include <gtest/gtest.h>

#include <random>

#include "geometry/window.h"

namespace weir {
namespace {

struct Layer {
  Retention retention;
  int source;  // the layer whose rows it reads
};

// B only matters for where blocks begin.
KvLayout layout_of(const std::vector<Layer>& layers, int block_tokens) {
  KvLayout layout;
  layout.format = KvFormat::uniform(KvType::f16, block_tokens);
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].source != static_cast<int>(l)) {
      layout.group_of.push_back(layout.group_of[static_cast<size_t>(layers[l].source)]);
      layout.slot_of.push_back(layout.slot_of[static_cast<size_t>(layers[l].source)]);
      continue;
    }
    size_t g = 0;
    while (g < layout.groups.size() && layout.groups[g].retention != layers[l].retention) ++g;
    if (g == layout.groups.size()) {
      layout.groups.emplace_back();
      layout.groups[g].retention = layers[l].retention;
      layout.groups[g].block_tokens = block_tokens;
    }
    layout.group_of.push_back(static_cast<int>(g));
    layout.slot_of.push_back(static_cast<int>(layout.groups[g].layers.size()));
    layout.groups[g].layers.push_back({.layer = static_cast<int>(l)});
  }
  return layout;
}

// Forwards, key by key: with nothing local before `start`, are all rows from need[g] on right, and
// what token p gives?
bool is_exact_from(const std::vector<Layer>& layers, const KvLayout& layout, int64_t start,
                   int64_t p, const std::vector<int64_t>& need) {
  std::vector<bool> state(static_cast<size_t>(p + 1), true);
  std::vector<std::vector<bool>> rows(layers.size());  // of owning layers
  for (size_t l = 0; l < layers.size(); ++l) {
    const Retention r = layers[l].retention;
    if (r.kind == LayerKind::global) continue;  // reads stored rows
    const size_t source = static_cast<size_t>(layers[l].source);
    if (source == l) {
      rows[l] = state;
      for (int64_t t = 0; t < start; ++t) rows[l][static_cast<size_t>(t)] = false;
      for (int64_t t = need[static_cast<size_t>(layout.group_of[l])]; t < p; ++t) {
        if (!rows[l][static_cast<size_t>(t)]) return false;
      }
    }
    for (int64_t t = start; t <= p; ++t) {
      for (int64_t key = first_visible(r, t); key <= t; ++key) {
        if (!rows[source][static_cast<size_t>(key)]) state[static_cast<size_t>(t)] = false;
      }
    }
  }
  return state[static_cast<size_t>(p)];
}

std::vector<int64_t> first_rows(const KvLayout& layout, int64_t p) {
  const int64_t B = layout.format.block_tokens;
  std::vector<int64_t> need;
  for (const KvGroup& g : layout.groups) need.push_back(first_visible(g.retention, p) / B * B);
  return need;
}

// Random orders of kinds, windows and shared layers: right from the start that is given, and not
// from one token later.
TEST(Replay, StartIsTheLatestThatIsExact) {
  std::mt19937 random(1);
  int tight = 0;
  for (int round = 0; round < 4000; ++round) {
    const int B = std::array{1, 2, 4, 5}[random() % 4];
    const Retention kinds[] = {{LayerKind::global, 0},
                               {LayerKind::sliding, 1 + static_cast<int64_t>(random() % 9)},
                               {LayerKind::sliding, 1 + static_cast<int64_t>(random() % 6)},
                               {LayerKind::chunked, 1 + static_cast<int64_t>(random() % 12)}};
    std::vector<Layer> layers;
    const size_t n_layers = 1 + random() % 7;
    for (size_t l = 0; l < n_layers; ++l) {
      Layer layer{kinds[random() % 4], static_cast<int>(l)};
      const int before = static_cast<int>(random() % (l + 1));
      if (random() % 4 == 0 && layers.size() > static_cast<size_t>(before)) {
        layer = layers[static_cast<size_t>(before)];
      }
      layers.push_back(layer);
    }
    const KvLayout layout = layout_of(layers, B);
    const int64_t p = B * (1 + static_cast<int64_t>(random() % 20));
    const std::vector<int64_t> need = first_rows(layout, p);
    const int64_t start = first_replayed_token(layout, p, need);
    ASSERT_TRUE(is_exact_from(layers, layout, start, p, need)) << round;
    ASSERT_LE(replay_start(layout, p), start);
    ASSERT_LT(start - replay_start(layout, p), B);
    if (start == 0 || start == p) continue;
    ASSERT_FALSE(is_exact_from(layers, layout, start + 1, p, need)) << round;
    ++tight;
  }
  EXPECT_GT(tight, 1000);
}

// gpt-oss-20b: 12 local layers of window 128 in turn with global ones.
TEST(Replay, IsLayersTimesWindow) {
  std::vector<Layer> layers;
  for (int l = 0; l < 24; ++l) {
    layers.push_back({l % 2 == 0 ? Retention{LayerKind::sliding, 128} : Retention{}, l});
  }
  const KvLayout layout = layout_of(layers, 1);
  EXPECT_EQ(10000 - replay_start(layout, 10000), 12 * 127);
  EXPECT_EQ(replay_start(layout, 1000), 0);
}

}  // namespace
}  // namespace weir

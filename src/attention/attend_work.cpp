#include "attention/attend_work.h"

#include <algorithm>
#include <numeric>

#include "attention/tile_memory.h"

namespace weir {
namespace {

// Rows of a full query tile, a multiple of the register block's six: enough that a key's conversion
// and its trip through the caches are paid by many products, few enough that scores and sums stay
// in the second-level cache. Measured from 48 to 96.
constexpr int64_t kTileRows = 72;
// Items per thread that keep the last ones from idling the others.
constexpr int64_t kItemsPerThread = 4;
// Partial results may take this much; what would need more is not split.
constexpr int64_t kMaxPartialFloats = 64 * kMiB;
// Below this many rows a tile costs what reading its keys costs.
constexpr int64_t kReadBoundRows = 8;

int64_t first_row_read(const SequenceRows& s, int64_t first_new, int64_t n_new) {
  int64_t first = s.first_visible_of(first_new);
  for (int64_t i = first_new + 1; i < first_new + n_new; ++i) {
    first = std::min(first, s.first_visible_of(i));
  }
  return first;
}

}  // namespace

void AttendWork::plan(const HeadShape& shape, std::span<const SequenceRows> sequences,
                      int n_threads, Split split) {
  WEIR_CHECK(n_threads > 0 && left_.load() == 0);
  WEIR_CHECK(shape.n_kv_heads > 0 && shape.n_heads % shape.n_kv_heads == 0);
  shape_ = shape;
  n_threads_ = n_threads;
  tiles_.clear();
  items_.clear();
  add_tiles(sequences, n_threads);
  split_tiles(split, sequences, n_threads);
  thread_floats_ = round_up(TileMemory::floats(max_tile_rows_, shape), 16);

  open_parts_ = std::make_unique<std::atomic<int32_t>[]>(tiles_.size());
  for (size_t i = 0; i < tiles_.size(); ++i) open_parts_[i].store(tiles_[i].n_parts);
  next_.store(0);
}

void AttendWork::add_tiles(std::span<const SequenceRows> sequences, int n_threads) {
  const int64_t heads = shape_.n_heads / shape_.n_kv_heads;
  int64_t new_tokens = 0;
  for (const SequenceRows& s : sequences) new_tokens += s.n_new;
  int64_t tokens = std::max<int64_t>(1, kTileRows / heads);
  if (n_threads > 1) {
    // Short prompts: smaller tiles, so that every thread gets some.
    const int64_t per_item = ceil_div(new_tokens * shape_.n_kv_heads, n_threads * kItemsPerThread);
    tokens = std::clamp<int64_t>(per_item, std::min<int64_t>(tokens, ceil_div(12, heads)), tokens);
  }
  max_tile_rows_ = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceRows& s = sequences[i];
    if (s.n_new == 0) continue;
    const int64_t even = ceil_div(s.n_new, ceil_div(s.n_new, tokens));
    for (int h = 0; h < shape_.n_kv_heads; ++h) {
      for (int64_t at = 0; at < s.n_new; at += even) {
        AttendTile tile;
        tile.sequence = static_cast<int32_t>(i);
        tile.kv_head = h;
        tile.first_new = at;
        tile.n_new = static_cast<int32_t>(std::min(even, s.n_new - at));
        tile.first_part = first_row_read(s, at, tile.n_new) / kPartRows;
        const int64_t last_row = s.n_past + at + tile.n_new - 1;
        tile.n_parts = static_cast<int32_t>(last_row / kPartRows - tile.first_part + 1);
        max_tile_rows_ =
            std::max<int32_t>(max_tile_rows_, static_cast<int32_t>(tile.n_new * heads));
        tiles_.push_back(tile);
      }
    }
  }
}

void AttendWork::split_tiles(Split split, std::span<const SequenceRows> sequences, int n_threads) {
  const int64_t heads = shape_.n_heads / shape_.n_kv_heads;
  std::vector<int64_t> costs(tiles_.size());
  for (size_t i = 0; i < tiles_.size(); ++i) {
    const AttendTile& t = tiles_[i];
    const SequenceRows& s = sequences[t.sequence];
    const int64_t keys = s.n_past + t.first_new + t.n_new - first_row_read(s, t.first_new, t.n_new);
    costs[i] = keys * std::max(t.n_new * heads, kReadBoundRows);
  }
  const int64_t total = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  const int64_t share = total / (n_threads * kItemsPerThread);

  partial_floats_ = 0;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    AttendTile& t = tiles_[i];
    const bool wanted =
        split == Split::always || (split == Split::automatic && n_threads > 1 && costs[i] > share);
    const int64_t floats = t.n_parts * part_floats(t);
    if (!wanted || t.n_parts < 2 || partial_floats_ + floats > kMaxPartialFloats) continue;
    t.partials = partial_floats_;
    partial_floats_ += floats;
  }
  hand_out_order(costs);
}

// Whole tiles, the long ones first, then the parts of split tiles, which are short.
void AttendWork::hand_out_order(std::span<const int64_t> costs) {
  std::vector<int32_t> order(tiles_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return costs[a] > costs[b]; });
  for (const int32_t i : order) {
    if (!tiles_[i].is_split()) items_.push_back({i, -1});
  }
  for (const int32_t i : order) {
    if (!tiles_[i].is_split()) continue;
    for (int32_t part = 0; part < tiles_[i].n_parts; ++part) items_.push_back({i, part});
  }
}

const AttendItem* AttendWork::take() {
  const int64_t at = next_.fetch_add(1, std::memory_order_relaxed);
  return at < items() ? &items_[at] : nullptr;
}

bool AttendWork::complete_part(int32_t tile) {
  return open_parts_[tile].fetch_sub(1, std::memory_order_acq_rel) == 1;
}

void AttendWork::leave(int n_threads) {
  if (left_.fetch_add(1, std::memory_order_acq_rel) + 1 < n_threads) return;
  // Nobody else touches the counters until the barrier that ends this call.
  for (size_t i = 0; i < tiles_.size(); ++i) {
    open_parts_[i].store(tiles_[i].n_parts, std::memory_order_relaxed);
  }
  next_.store(0, std::memory_order_relaxed);
  left_.store(0, std::memory_order_release);
}

int64_t AttendWork::part_floats(const AttendTile& tile) const {
  const int64_t heads = shape_.n_heads / shape_.n_kv_heads;
  return PartResult::floats(tile.n_new * heads, shape_.v_dim);
}

}  // namespace weir

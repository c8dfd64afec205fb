#include "attention/simd_attend.h"

#include <algorithm>

#include "attention/attend_work.h"
#include "attention/simd_targets.h"
#include "kv/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/simd_attend.cpp"
// clang-format off
#include "hwy/foreach_target.h"  // first: includes this file again for each target
#include "attention/simd_shared-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

// One thread's work on the tiles of one attend call.
class TileWorker {
 public:
  TileWorker(const AttendArgs& args, int thread, int n_threads)
      : args_(args),
        n_threads_(n_threads),
        shape_(args.shape),
        heads_(shape_.n_heads / shape_.n_kv_heads),
        memory_(
            TileMemory::at(args.work->thread_memory(thread), args.work->max_tile_rows(), shape_)),
        score_(shape_.is_shared() ? for_type<SharedScore>(shape_.k_type)
                                  : for_type<Score>(shape_.k_type)),
        weigh_(for_type<Weigh>(shape_.v_type)) {
    WEIR_CHECK(!shape_.is_shared() ||
               (shape_.k_type == shape_.v_type && shape_.k_dim == shape_.v_dim));
  }

  void run(const AttendItem& item) {
    const AttendTile& tile = args_.work->tile(item.tile);
    if (item.tile != packed_tile_) {
      pack_queries(tile);
      packed_tile_ = item.tile;
    }
    if (item.part < 0) {
      begin_merge(tile);
      for (int32_t part = 0; part < tile.n_parts; ++part) {
        compute_part(tile, part, part + 1, memory_.part);
        merge(tile, memory_.part);
      }
      finish(tile);
      return;
    }
    const int64_t rows = tile.n_new * heads_;
    // With other threads about, they take the parts in between.
    compute_part(tile, item.part, item.part + n_threads_,
                 PartResult::at(args_.work->partial(tile, item.part), rows));
    if (!args_.work->complete_part(item.tile)) return;
    begin_merge(tile);
    for (int32_t part = 0; part < tile.n_parts; ++part) {
      merge(tile, PartResult::at(args_.work->partial(tile, part), rows));
    }
    finish(tile);
  }

 private:
  const SequenceRows& sequence(const AttendTile& tile) const {
    return args_.sequences[tile.sequence];
  }
  float* out_row(const AttendTile& tile, int64_t row) const {
    return args_.out.row(sequence(tile).token_begin + tile.first_new + row / heads_,
                         tile.kv_head * heads_ + row % heads_);
  }

  void pack_queries(const AttendTile& tile) {
    const int rows = static_cast<int>(tile.n_new * heads_);
    const float cap = args_.params.softcap;
    const float factor = cap != 0.0f ? args_.params.scale / cap : args_.params.scale;
    const int length = shape_.chain_length();
    for (int first = 0; first < rows; first += kBlockRows) {
      const int n = std::min(rows - first, kBlockRows);
      float* to = memory_.q + static_cast<ptrdiff_t>(first) * length;
      for (int r = 0; r < n; ++r) {
        const int row = first + r;
        const float* from = args_.q.row(sequence(tile).token_begin + tile.first_new + row / heads_,
                                        tile.kv_head * heads_ + row % heads_);
        if (shape_.is_shared()) {
          from = divided(from);
        } else if (shape_.k_rotated) {
          from = rotated(from);
        }
        for (int i = 0; i < length; ++i) {
          const int at = i < shape_.k_stored() ? chain_element(shape_.k_type, i) : i;
          to[i * n + r] = from[at] * factor;
        }
      }
    }
  }

  const float* rotated(const float* query) {
    std::copy_n(query, shape_.k_dim, memory_.row);
    hadamard(std::span<float>(memory_.row, static_cast<size_t>(shape_.k_dim)));
    return memory_.row;
  }

  // A query as SharedScore has keys: what meets the K tile, then what meets V, with the factors.
  const float* divided(const float* query) {
    const float* factors = args_.params.key_factors;
    float *k = memory_.row, *v = k + shape_.k_rotating;
    for (int i = 0; i < shape_.k_rotating; ++i) k[i] = query[shape_.stored_element(i)];
    if (shape_.k_rotated) hadamard(std::span<float>(k, static_cast<size_t>(shape_.k_rotating)));
    const bool is_whole = shape_.takes_whole_values();
    const int half = shape_.k_rotating / 2, middle = shape_.k_dim / 2;
    for (int i = 0; i < shape_.k_dim; ++i) {
      const bool is_stored = i % middle < half;
      if (!is_stored) {
        *v++ = query[i] * factors[i];
      } else if (is_whole) {
        *v++ = 0.0f;
      }
    }
    if (shape_.v_rotated) {
      hadamard(std::span<float>(k + shape_.k_rotating, static_cast<size_t>(shape_.k_dim)));
    }
    return memory_.row;
  }

  // The part's keys that some row of the tile reads, and per token which ones.
  struct Range {
    int begin, end;
    bool empty() const { return begin >= end; }
  };
  Range visible(const AttendTile& tile, int token, int64_t first_row) const {
    const SequenceRows& s = sequence(tile);
    const int64_t index = tile.first_new + token;
    const auto inside = [&](int64_t row) HWY_ATTR {
      return static_cast<int>(std::clamp<int64_t>(row - first_row, 0, kPartRows));
    };
    return {inside(s.first_visible_of(index)), inside(s.n_past + index + 1)};
  }

  PartKeys part_keys(const AttendTile& tile, int64_t first_row, Range range,
                     int64_t next_row) const {
    const SequenceRows& s = sequence(tile);
    PartKeys part;
    part.block_tokens = shape_.block_tokens;
    part.begin = range.begin;
    part.end = range.end;
    const int64_t k_head = tile.kv_head * k_tile_bytes(shape_);
    const int64_t v_head = tile.kv_head * v_tile_bytes(shape_);
    for (int i = range.begin / part.block_tokens; i * part.block_tokens < range.end; ++i) {
      const TilePair& block = s.blocks[(first_row - s.first_row) / part.block_tokens + i];
      part.k_tiles[i] = block.k + k_head;
      part.v_tiles[i] = block.v + v_head;
    }
    const bool is_shared = shape_.is_shared();
    part.k_rotating = shape_.k_rotating;
    part.v_dim = shape_.v_dim;
    part.takes_whole_values = shape_.takes_whole_values();
    part.unpacked = memory_.unpacked;
    part.next_tile_bytes = is_shared ? v_tile_bytes(shape_) : k_tile_bytes(shape_);
    part.v_row_bytes = kv_row_bytes(shape_.v_type, shape_.v_dim);
    const int64_t next = (next_row - s.first_row) / part.block_tokens;
    part.has_next = next_row < s.n_past + tile.first_new + tile.n_new;
    if (!part.has_next) return part;
    for (int i = range.begin / part.block_tokens; i * part.block_tokens < range.end; ++i) {
      const int64_t block = std::min(next + i, static_cast<int64_t>(s.blocks.size()) - 1);
      part.next_tiles[i] = is_shared ? s.blocks[block].v + v_head : s.blocks[block].k + k_head;
    }
    return part;
  }

  // Part `index` of the tile; `next` is the one that this thread will probably want afterwards.
  void compute_part(const AttendTile& tile, int32_t index, int32_t next, const PartResult& result) {
    const int64_t first_row = (tile.first_part + index) * kPartRows;
    const int tokens = tile.n_new;
    const int rows = static_cast<int>(tokens * heads_);
    Range all{static_cast<int>(kPartRows), 0};     // read by some token
    Range common{0, static_cast<int>(kPartRows)};  // read by every token
    for (int t = 0; t < tokens; ++t) {
      const Range r = visible(tile, t, first_row);
      common = {std::max(common.begin, r.begin), std::min(common.end, r.end)};
      if (r.empty()) continue;
      all = {std::min(all.begin, r.begin), std::max(all.end, r.end)};
    }
    if (all.empty()) {
      std::fill_n(result.max, rows, kNone);
      return;
    }

    const PartKeys part = part_keys(tile, first_row, all, (tile.first_part + next) * kPartRows);
    score_(part, rows, shape_.chain_length(), memory_.q, memory_.scores);

    for (int t = 0; t < tokens; ++t) {
      const Range r = visible(tile, t, first_row);
      for (int row = t * heads_; row < (t + 1) * heads_; ++row) {
        result.max[row] = kNone;
        if (r.empty()) continue;
        exponentials(memory_.scores + row * kScoreStride, r.begin, r.end, args_.params.softcap,
                     result.max[row], result.denom[row]);
      }
    }
    weigh(tile, part, first_row, common, result);
  }

  // Keys that every token reads, for all rows at once; before and after them each token's own.
  void weigh(const AttendTile& tile, const PartKeys& part, int64_t first_row, Range common,
             const PartResult& result) {
    const int rows = static_cast<int>(tile.n_new * heads_);
    std::fill_n(result.sums, rows * sum_stride(shape_.v_dim), 0.0f);
    if (common.empty()) {
      for (int t = 0; t < tile.n_new; ++t) {
        weigh_rows(part, visible(tile, t, first_row), t * heads_, heads_, result);
      }
      return;
    }
    for (int t = 0; t < tile.n_new; ++t) {
      const Range r = visible(tile, t, first_row);
      weigh_rows(part, {r.begin, common.begin}, t * heads_, heads_, result);
    }
    weigh_rows(part, common, 0, rows, result, part.has_next);
    for (int t = 0; t < tile.n_new; ++t) {
      const Range r = visible(tile, t, first_row);
      weigh_rows(part, {common.end, r.end}, t * heads_, heads_, result);
    }
  }

  void weigh_rows(const PartKeys& part, Range keys, int first, int rows, const PartResult& result,
                  bool ask_for_next = false) {
    if (keys.empty()) return;
    weigh_({part.v_tiles, part.block_tokens, keys.begin, keys.end,
            ask_for_next ? part.next_tiles : nullptr, part.next_tile_bytes},
           rows, shape_.v_dim, memory_.scores + first * kScoreStride,
           result.sums + first * sum_stride(shape_.v_dim));
  }

  void begin_merge(const AttendTile& tile) { std::fill_n(memory_.max, tile.n_new * heads_, kNone); }
  void merge(const AttendTile& tile, const PartResult& part) {
    for (int row = 0; row < tile.n_new * heads_; ++row) {
      merge_row(part.max[row], part.denom[row], part.sums + row * sum_stride(shape_.v_dim),
                shape_.v_dim, memory_.max[row], memory_.denom[row], out_row(tile, row));
    }
  }
  void finish(const AttendTile& tile) {
    for (int row = 0; row < tile.n_new * heads_; ++row) {
      const float* sinks = args_.params.sinks;
      finish_row(sinks ? sinks + tile.kv_head * heads_ + row % heads_ : nullptr, shape_.v_dim,
                 memory_.max[row], memory_.denom[row], out_row(tile, row));
      if (shape_.v_rotated) {
        hadamard(std::span<float>(out_row(tile, row), static_cast<size_t>(shape_.v_dim)));
      }
    }
  }

  const AttendArgs& args_;
  const int n_threads_;
  const HeadShape& shape_;
  const int heads_;  // query heads of a KV head
  TileMemory memory_;
  decltype(&Score<float>::run) score_;
  decltype(&Weigh<float>::run) weigh_;
  int32_t packed_tile_ = -1;
};

void attend(const AttendArgs& args, int thread, int n_threads) {
  AttendWork& work = *args.work;
  TileWorker worker(args, thread, n_threads);
  while (const AttendItem* item = work.take()) worker.run(*item);
  work.leave(n_threads);
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir {
namespace {
HWY_EXPORT(attend);
}  // namespace

void simd_attend(const AttendArgs& args, int thread, int n_threads) {
  WEIR_CHECK(args.work && n_threads <= args.work->planned_threads());
  HWY_DYNAMIC_DISPATCH(attend)(args, thread, n_threads);
}

}  // namespace weir
#endif

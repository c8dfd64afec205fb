#include <algorithm>
#include <vector>

#include "attention/simd_attend.h"
#include "attention/simd_targets.h"
#include "attention/tile_memory.h"
#include "kv/codec.h"
#include "kv/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/simd_store.cpp"
// clang-format off
#include "hwy/foreach_target.h"  // first: includes this file again for each target
#include "attention/simd_element-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

// New rows [begin, end) of one head in one block: their place in the tile and where they come from.
struct NewRows {
  int begin, end;
  const float* from;  // the first one
  int64_t stride;     // floats from row to row
};

// K tile: element d of row r at d * block_tokens + r.
template <class T>
struct StoreKeys {
  static HWY_NOINLINE void run(const NewRows& rows, int dim, int block_tokens, std::byte* tile) {
    constexpr int kChunk = 32;
    T chunk[64][kChunk];  // converted row by row, written column by column
    T* to = reinterpret_cast<T*>(tile);
    const int n = rows.end - rows.begin;
    for (int d = 0; d < dim; d += kChunk) {
      const int width = std::min(kChunk, dim - d);
      for (int r = 0; r < n; ++r) encode(rows.from + r * rows.stride + d, chunk[r], width);
      for (int i = 0; i < width; ++i) {
        T* column = to + static_cast<ptrdiff_t>(d + i) * block_tokens + rows.begin;
        for (int r = 0; r < n; ++r) column[r] = chunk[r][i];
      }
    }
  }
};

// V tile: row after row.
template <class T>
struct StoreValues {
  static HWY_NOINLINE void run(const NewRows& rows, int dim, int, std::byte* tile) {
    T* to = reinterpret_cast<T*>(tile);
    for (int r = rows.begin; r < rows.end; ++r) {
      encode(rows.from + (r - rows.begin) * rows.stride, to + static_cast<ptrdiff_t>(r) * dim, dim);
    }
  }
};

// The codec's own rounding: there is one way to choose a scale.
template <class T>
constexpr KvType quantized_type() {
  constexpr int kBits = T::kBits;
  return kBits == 8   ? KvType::q8_0
         : kBits == 6 ? KvType::q6_0
         : kBits == 5 ? KvType::q5_0
                      : KvType::q4_0;
}

template <QuantizedType T>
struct StoreKeys<T> {
  static HWY_NOINLINE void run(const NewRows& rows, int dim, int block_tokens, std::byte* tile) {
    const Codec& codec = codec_of(quantized_type<T>());
    for (int r = rows.begin; r < rows.end; ++r) {
      codec.encode_k(tile, block_tokens, r,
                     {rows.from + (r - rows.begin) * rows.stride, static_cast<size_t>(dim)});
    }
  }
};

template <QuantizedType T>
struct StoreValues<T> {
  static HWY_NOINLINE void run(const NewRows& rows, int dim, int block_tokens, std::byte* tile) {
    const Codec& codec = codec_of(quantized_type<T>());
    for (int r = rows.begin; r < rows.end; ++r) {
      codec.encode_v(tile, block_tokens, r,
                     {rows.from + (r - rows.begin) * rows.stride, static_cast<size_t>(dim)});
    }
  }
};

// Makes `rows` Hadamard-rotated copies of themselves, in `memory`.
void rotate(NewRows& rows, int dim, std::vector<float>& memory) {
  const auto width = static_cast<size_t>(dim);
  const int n = rows.end - rows.begin;
  memory.resize(static_cast<size_t>(n) * width);
  for (int r = 0; r < n; ++r) {
    float* to = memory.data() + static_cast<size_t>(r) * width;
    std::copy_n(rows.from + r * rows.stride, width, to);
    hadamard(std::span<float>(to, width));
  }
  rows.from = memory.data();
  rows.stride = dim;
}

// Makes `rows` copies of those of their elements that a K tile has, in `memory`.
void take_stored(NewRows& rows, const HeadShape& shape, std::vector<float>& memory) {
  const int n = rows.end - rows.begin, width = shape.k_stored();
  memory.resize(static_cast<size_t>(n) * static_cast<size_t>(width));
  float* to = memory.data();
  for (int r = 0; r < n; ++r) {
    const float* from = rows.from + r * rows.stride;
    for (int i = 0; i < width; ++i) *to++ = from[shape.stored_element(i)];
  }
  rows.from = memory.data();
  rows.stride = width;
}

// One thread's share: every n-th tile. No two threads write to the same one.
void store(const StoreArgs& args, int thread, int n_threads) {
  const HeadShape& shape = args.shape;
  const int64_t B = shape.block_tokens;
  const auto store_keys = for_type<StoreKeys>(shape.k_type);
  const auto store_values = for_type<StoreValues>(shape.v_type);
  std::vector<float> rotated, taken;
  int64_t turn = 0;
  for (const SequenceRows& s : args.sequences) {
    const int64_t end = s.n_past + s.n_new;
    for (int64_t row = s.n_past; row < end;) {
      const int64_t block = (row - s.first_row) / B;
      const int64_t block_row = s.first_row + block * B;
      const int64_t stop = std::min(end, block_row + B);
      const int64_t token = s.token_begin + row - s.n_past;
      for (int h = 0; h < shape.n_kv_heads; ++h) {
        NewRows rows{static_cast<int>(row - block_row), static_cast<int>(stop - block_row), nullptr,
                     0};
        if (turn++ % n_threads == thread) {
          rows.from = args.k.row(token, h);
          rows.stride = args.k.token_stride;
          std::byte* tile = s.blocks[block].k + h * k_tile_bytes(shape);
          if (shape.is_shared()) take_stored(rows, shape, taken);
          if (shape.k_rotated) rotate(rows, shape.k_stored(), rotated);
          store_keys(rows, shape.k_stored(), shape.block_tokens, tile);
        }
        if (turn++ % n_threads == thread) {
          rows.from = args.v.row(token, h);
          rows.stride = args.v.token_stride;
          if (shape.v_rotated) rotate(rows, shape.v_dim, rotated);
          store_values(rows, shape.v_dim, shape.block_tokens,
                       s.blocks[block].v + h * v_tile_bytes(shape));
        }
      }
      row = stop;
    }
  }
}

const char* name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir {
namespace {
HWY_EXPORT(store);
HWY_EXPORT(name);
}  // namespace

void simd_store(const StoreArgs& args, int thread, int n_threads) {
  HWY_DYNAMIC_DISPATCH(store)(args, thread, n_threads);
}

const char* simd_name() { return HWY_DYNAMIC_DISPATCH(name)(); }

}  // namespace weir
#endif

// The register-blocked products that attention's time goes into. Included once per Highway target.
//
// A score is one chain of fused multiply-adds over the head's elements in order, a weighted sum one
// chain over keys in row order; how many rows or vectors share a block only says which chains run
// side by side.
#if defined(WEIR_ATTENTION_SIMD_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_ATTENTION_SIMD_BLOCK_INL_H_
#undef WEIR_ATTENTION_SIMD_BLOCK_INL_H_
#else
#define WEIR_ATTENTION_SIMD_BLOCK_INL_H_
#endif

#include "attention/simd_element-inl.h"
#include "attention/tile_memory.h"

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

// kBlockVectors vectors of keys: where element 0 of each one's first key is. Element d follows
// d * block_tokens later.
template <class T>
struct KeyVectors {
  const T* at[kBlockVectors];
};

// Memory that is needed soon: the V rows of the keys being scored. For each vector of keys where
// they start, and how far to walk along them per element of the head.
struct ValuesAhead {
  const std::byte* at[kBlockVectors];
  ptrdiff_t step;  // bytes
};

// scores[r][v] = sum over d of q[d][r] * k[d][v], for R rows. Asks for what is `ahead` meanwhile.
template <class T, int R, bool kAhead>
HWY_INLINE void score_block(const KeyVectors<T>& keys, const ValuesAhead& ahead, ptrdiff_t stride,
                            int k_dim, const float* HWY_RESTRICT q, float* HWY_RESTRICT scores) {
  const FloatTag d;
  FloatVec sums[R][kBlockVectors];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kBlockVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  ptrdiff_t at = 0, ahead_at = 0;
  for (int i = 0; i < k_dim; ++i, at += stride, q += R) {
    FloatVec k[kBlockVectors];
    for (int v = 0; v < kBlockVectors; ++v) {
      k[v] = load_wide(d, keys.at[v] + at);
      if constexpr (kAhead) __builtin_prefetch(ahead.at[v] + ahead_at, 0, 2);  // second-level cache
    }
    if constexpr (kAhead) ahead_at += ahead.step;
    for (int r = 0; r < R; ++r) {
      const FloatVec qr = hn::Set(d, q[r]);
      for (int v = 0; v < kBlockVectors; ++v) sums[r][v] = hn::MulAdd(qr, k[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kBlockVectors; ++v) {
      hn::StoreU(sums[r][v], d, scores + r * kScoreStride + v * kLanes);
    }
  }
}

// Keys [begin, end) of a part, counted from the part's first row, and the V tiles that hold them.
struct ValueRange {
  const std::byte* const* tiles;  // tile of keys [i * block_tokens, (i+1) * block_tokens)
  int block_tokens;
  int begin, end;
  // K tiles that are needed next, one for each of `tiles`, or null; and their size.
  const std::byte* const* ahead = nullptr;
  int64_t ahead_bytes = 0;
};

// sums[r][c] += sum over keys of p[r][key] * v[key][c] for R rows and C vectors of columns from
// `column` on. Walks meanwhile through the same share of what is ahead.
template <class T, int R, int C, bool kAhead, class D>
HWY_INLINE void weigh_block(D d, const ValueRange& keys, int v_dim, int column,
                            const float* HWY_RESTRICT p, float* HWY_RESTRICT sums,
                            ptrdiff_t stride) {
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(D()));
  hn::Vec<D> acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) acc[r][c] = hn::LoadU(d, sums + r * stride + column + c * kWidth);
  }
  const ptrdiff_t step =
      kAhead ? static_cast<ptrdiff_t>(keys.ahead_bytes * C * kWidth / v_dim / keys.block_tokens)
             : 0;
  for (int key = keys.begin; key < keys.end;) {
    const int tile = key / keys.block_tokens, in_block = key % keys.block_tokens;
    const int stop = HWY_MIN(keys.end, key - in_block + keys.block_tokens);
    const T* HWY_RESTRICT row = reinterpret_cast<const T*>(keys.tiles[tile]) +
                                static_cast<ptrdiff_t>(in_block) * v_dim + column;
    const std::byte* ahead =
        kAhead ? keys.ahead[tile] + keys.ahead_bytes * column / v_dim + in_block * step : nullptr;
    for (; key < stop; ++key, row += v_dim) {
      if constexpr (kAhead) {
        __builtin_prefetch(ahead, 0, 2);
        __builtin_prefetch(ahead + step / 2, 0, 2);
        ahead += step;
      }
      hn::Vec<D> v[C];
      for (int c = 0; c < C; ++c) v[c] = load_wide(d, row + c * kWidth);
      for (int r = 0; r < R; ++r) {
        const hn::Vec<D> pr = hn::Set(d, p[r * kScoreStride + key]);
        for (int c = 0; c < C; ++c) acc[r][c] = hn::MulAdd(pr, v[c], acc[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) hn::StoreU(acc[r][c], d, sums + r * stride + column + c * kWidth);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();
#endif

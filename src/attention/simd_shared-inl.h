// Scores where K and V are stored once: see GroupLayer::k_rotating. Included once per Highway
// target.
//
// The keys of a register block's columns are put together in memory of the thread, as a K tile of
// f32: first the rotating elements, then V's others, or all of V's: see takes_whole_values(). The
// packed queries have V's factors. From there on nothing differs from keys that are stored as such.
// All query rows of the tile share the work, and V is in the caches when the weighted sums need it.
#if defined(WEIR_ATTENTION_SIMD_SHARED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_ATTENTION_SIMD_SHARED_INL_H_
#undef WEIR_ATTENTION_SIMD_SHARED_INL_H_
#else
#define WEIR_ATTENTION_SIMD_SHARED_INL_H_
#endif

#include "attention/simd_part-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // one lane: nothing to transpose

template <class T>
HWY_INLINE void transpose(const T* HWY_RESTRICT from, ptrdiff_t, float* HWY_RESTRICT to,
                          ptrdiff_t) {
  const FloatTag d;
  hn::StoreU(load_wide(d, from), d, to);
}

#else

// The 4x4 blocks of four rows, transposed in place: lane 4b + j of vector i becomes element 4b + i
// of row j.
HWY_INLINE void transpose_blocks(FloatVec* rows) {
  const FloatTag d;
  const hn::Repartition<uint64_t, FloatTag> d64;
  const auto pairs = [&](FloatVec v) HWY_ATTR { return hn::BitCast(d64, v); };
  const auto low01 = pairs(hn::InterleaveLower(d, rows[0], rows[1]));
  const auto low23 = pairs(hn::InterleaveLower(d, rows[2], rows[3]));
  const auto high01 = pairs(hn::InterleaveUpper(d, rows[0], rows[1]));
  const auto high23 = pairs(hn::InterleaveUpper(d, rows[2], rows[3]));
  rows[0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
  rows[1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
  rows[2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
  rows[3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
}

// kLanes elements of kLanes rows: to[e * to_stride + r] = from[r * stride + e].
template <class T>
HWY_INLINE void transpose(const T* HWY_RESTRICT from, ptrdiff_t stride, float* HWY_RESTRICT to,
                          ptrdiff_t to_stride) {
  const FloatTag d;
  FloatVec t[kLanes];
  for (int r = 0; r < kLanes; ++r) t[r] = load_wide(d, from + r * stride);
  for (int r = 0; r < kLanes; r += 4) transpose_blocks(t + r);
  // Block b of t[r + i] now has element 4b + i of the rows r .. r+3: gather the blocks of each b.
  for (int i = 0; i < 4; ++i) {
    const auto put = [&](int element, FloatVec v)
                         HWY_ATTR { hn::StoreU(v, d, to + element * to_stride); };
    if constexpr (kLanes == 4) {
      put(i, t[i]);
    } else if constexpr (kLanes == 8) {
      put(i, hn::ConcatLowerLower(d, t[4 + i], t[i]));
      put(4 + i, hn::ConcatUpperUpper(d, t[4 + i], t[i]));
    } else {
      const auto even = [&](FloatVec a, FloatVec b)
                            HWY_ATTR { return hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a); };
      const auto odd = [&](FloatVec a, FloatVec b)
                           HWY_ATTR { return hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a)); };
      const FloatVec even01 = even(t[i], t[4 + i]), even23 = even(t[8 + i], t[12 + i]);
      const FloatVec odd01 = odd(t[i], t[4 + i]), odd23 = odd(t[8 + i], t[12 + i]);
      put(i, hn::ConcatLowerLower(d, even23, even01));
      put(4 + i, hn::ConcatLowerLower(d, odd23, odd01));
      put(8 + i, hn::ConcatUpperUpper(d, even23, even01));
      put(12 + i, hn::ConcatUpperUpper(d, odd23, odd01));
    }
  }
}

#endif  // HWY_SCALAR

// Elements [begin, end) of the V rows of one vector of keys, one element after another `stride`
// floats apart. Gives where the next one goes.
template <class T>
HWY_INLINE float* unpack_values(const T* row, int dim, int begin, int end, float* to,
                                ptrdiff_t stride) {
  int e = begin;
  for (; e + kLanes <= end; e += kLanes, to += kLanes * stride) {
    transpose(row + e, dim, to, stride);
  }
  const hn::CappedTag<float, 1> one;
  for (; e < end; ++e, to += stride) {
    for (int r = 0; r < kLanes; ++r) hn::StoreU(load_wide(one, row + r * dim + e), one, to + r);
  }
  return to;
}

// Scores of a register block of columns of keys: [length][kBlockVectors * kLanes] floats. Not
// inlined: once for all types.
HWY_NOINLINE void score_unpacked_keys(const float* unpacked, int rows, int length, const float* q,
                                      float* scores) {
  KeyVectors<float> keys;
  for (int v = 0; v < kBlockVectors; ++v) keys.at[v] = unpacked + v * kLanes;
  score_rows<float, false>(keys, {}, kBlockVectors * kLanes, rows, length, q, scores);
}

// Scores of keys that unpack(key, to) puts together, a vector of them at a time.
template <class Unpack>
HWY_INLINE void score_made_keys(const PartKeys& part, int rows, int length, const float* q,
                                float* scores, Unpack unpack) {
  constexpr int kStep = kBlockVectors * kLanes;
  for (int key = part.begin / kStep * kStep; key < part.end; key += kStep) {
    for (int v = 0; v < kBlockVectors; ++v) {
      unpack(nearest_vector(part, key + v * kLanes), part.unpacked + v * kLanes);
    }
    score_unpacked_keys(part.unpacked, rows, length, q, scores + key);
  }
}

template <class T>
struct SharedScore {
  static constexpr int kStep = kBlockVectors * kLanes;

  // The keys of one vector, into part.unpacked: [chain_length][kStep].
  static HWY_INLINE void unpack(const PartKeys& part, int key, float* to) {
    const FloatTag d;
    const int dim = part.v_dim;
    const int tile = key / part.block_tokens, row = key % part.block_tokens;
    const T* k = reinterpret_cast<const T*>(part.k_tiles[tile]) + row;
    for (int e = 0; e < part.k_rotating; ++e, k += part.block_tokens, to += kStep) {
      hn::StoreU(load_wide(d, k), d, to);
    }
    const T* v = reinterpret_cast<const T*>(part.v_tiles[tile]) + static_cast<ptrdiff_t>(row) * dim;
    if (part.takes_whole_values) {
      unpack_values(v, dim, 0, dim, to, kStep);
    } else {
      const int half = part.k_rotating / 2;
      to = unpack_values(v, dim, half, dim / 2, to, kStep);
      unpack_values(v, dim, dim / 2 + half, dim, to, kStep);
    }
  }

  static HWY_NOINLINE void run(const PartKeys& part, int rows, int length, const float* q,
                               float* scores) {
    score_made_keys(part, rows, length, q, scores,
                    [&](int key, float* to) HWY_ATTR { unpack(part, key, to); });
  }
};

// The 32 elements of one part of the K tiles, in the order of the chain.
template <QuantizedType T>
HWY_INLINE void unpack_key_part(const std::byte* part, int block_tokens, int row, float* to,
                                ptrdiff_t stride) {
  const FloatVec scales = load_scales(part + 2 * row);
  const std::byte* bytes = part + 2 * block_tokens + row;
  for_elements<1>(T(), &bytes, block_tokens, [&](int n, int, FloatVec k) HWY_ATTR {
    hn::StoreU(hn::Mul(k, scales), FloatTag(), to + n * stride);
  });
}

template <QuantizedType T>
struct SharedScore<T> {
  static constexpr int kStep = kBlockVectors * kLanes;

  static HWY_INLINE void unpack(const PartKeys& part, int key, float* to) {
    constexpr ptrdiff_t kBytes = QuantizedBlock<T::kBits>::kBytes;
    const int B = part.block_tokens, tile = key / B, row = key % B;
    const ptrdiff_t part_bytes = B * (2 + kBytes);
    const std::byte* k = part.k_tiles[tile];
    for (int e = 0; e < part.k_rotating; e += kQuantizedElements, k += part_bytes) {
      unpack_key_part<T>(k, B, row, to, kStep);
      to += kQuantizedElements * kStep;
    }
    const std::byte* v = part.v_tiles[tile];
    for (int e = 0; e < part.v_dim; e += kQuantizedElements, v += part_bytes) {
      HWY_ALIGN float scales[kLanes];
      HWY_ALIGN float rows[kLanes][kQuantizedElements];
      hn::Store(load_scales(v + 2 * row), FloatTag(), scales);
      for (int r = 0; r < kLanes; ++r) {
        unpack_columns<T>(v + 2 * B + (row + r) * kBytes, scales[r], rows[r]);
      }
      to = unpack_values(rows[0], kQuantizedElements, 0, kQuantizedElements, to, kStep);
    }
  }

  static HWY_NOINLINE void run(const PartKeys& part, int rows, int length, const float* q,
                               float* scores) {
    score_made_keys(part, rows, length, q, scores,
                    [&](int key, float* to) HWY_ATTR { unpack(part, key, to); });
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();
#endif

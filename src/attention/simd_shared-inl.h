// Scores where K and V are stored once: see GroupLayer::k_rotating. Included once per Highway
// target.
//
// The keys of a register block's columns are put together in memory of the thread, as a K tile of
// f32: first the rotating elements, then V's others, whose factors the packed queries have. From
// there on nothing differs from keys that are stored as such. All query rows of the tile share the
// work, and V is in the caches when the weighted sums need it.
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

template <class T>
struct SharedScore {
  static constexpr int kStep = kBlockVectors * kLanes;

  // The keys of one vector, into part.unpacked: [dim][kStep].
  static HWY_INLINE void unpack(const PartKeys& part, int key, int dim, float* to) {
    const FloatTag d;
    const int tile = key / part.block_tokens, row = key % part.block_tokens;
    const T* k = reinterpret_cast<const T*>(part.k_tiles[tile]) + row;
    for (int e = 0; e < part.k_rotating; ++e, k += part.block_tokens, to += kStep) {
      hn::StoreU(load_wide(d, k), d, to);
    }
    const T* v = reinterpret_cast<const T*>(part.v_tiles[tile]) + static_cast<ptrdiff_t>(row) * dim;
    const int half = part.k_rotating / 2;
    to = unpack_values(v, dim, half, dim / 2, to, kStep);
    unpack_values(v, dim, dim / 2 + half, dim, to, kStep);
  }

  static HWY_NOINLINE void run(const PartKeys& part, int rows, int k_dim, const float* q,
                               float* scores) {
    KeyVectors<float> keys;
    for (int v = 0; v < kBlockVectors; ++v) keys.at[v] = part.unpacked + v * kLanes;
    for (int key = part.begin / kStep * kStep; key < part.end; key += kStep) {
      for (int v = 0; v < kBlockVectors; ++v) {
        unpack(part, nearest_vector(part, key + v * kLanes), k_dim, part.unpacked + v * kLanes);
      }
      score_rows<float, false>(keys, {}, kStep, rows, k_dim, q, scores + key);
    }
  }
};

// For the types that a layout stores once.
HWY_INLINE decltype(&SharedScore<float>::run) shared_score(KvType type) {
  switch (type) {
    case KvType::f32:
      return &SharedScore<float>::run;
    case KvType::f16:
      return &SharedScore<hwy::float16_t>::run;
    case KvType::bf16:
      return &SharedScore<hwy::bfloat16_t>::run;
    default:
      WEIR_CHECK(!"a KV type that is not stored once");
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();
#endif

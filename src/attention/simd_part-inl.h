// One part (kPartRows key rows at most) for the rows of a query tile. Included once per Highway
// target.
#if defined(WEIR_ATTENTION_SIMD_PART_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_ATTENTION_SIMD_PART_INL_H_
#undef WEIR_ATTENTION_SIMD_PART_INL_H_
#else
#define WEIR_ATTENTION_SIMD_PART_INL_H_
#endif

#include <cstring>
#include <limits>

#include "attention/simd_block-inl.h"
#include "attention/simd_quantized-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int kMaxPartTiles = static_cast<int>(kPartRows / 16);  // tiles of 16 rows

// The keys of a part, for one KV head. Keys are counted from the part's first row.
struct PartKeys {
  const std::byte* k_tiles[kMaxPartTiles];  // those that hold keys of [begin, end); others unset
  const std::byte* v_tiles[kMaxPartTiles];
  int block_tokens = 0;
  int begin = 0, end = 0;  // keys that some row reads
  int64_t next_tile_bytes = 0, v_row_bytes = 0;
  // The tiles that the part that probably comes next reads first, for each tile of [begin, end); if
  // has_next: its K tiles, or V tiles where keys are made of them.
  const std::byte* next_tiles[kMaxPartTiles];
  bool has_next = false;
  // Where keys are made of V rows: the elements that the K tile has, those of a V row, whether all
  // of them are taken, and memory for some keys.
  int k_rotating = 0, v_dim = 0;
  bool takes_whole_values = false;
  float* unpacked = nullptr;
};

// Key `key`, or the nearest one that shares a vector with keys that some row reads: memory outside
// the visible range is never touched.
HWY_INLINE int nearest_vector(const PartKeys& part, int key) {
  const int first = part.begin / kLanes * kLanes, last = (part.end - 1) / kLanes * kLanes;
  return HWY_MIN(HWY_MAX(key, first), last);
}

template <class T>
HWY_INLINE KeyVectors<T> key_vectors(const PartKeys& part, int key) {
  KeyVectors<T> keys;
  for (int v = 0; v < kBlockVectors; ++v) {
    const int at = nearest_vector(part, key + v * kLanes);
    keys.at[v] =
        reinterpret_cast<const T*>(part.k_tiles[at / part.block_tokens]) + at % part.block_tokens;
  }
  return keys;
}

template <QuantizedType T>
HWY_INLINE KeyVectors<T> key_vectors(const PartKeys& part, int key) {
  KeyVectors<T> keys;
  for (int v = 0; v < kBlockVectors; ++v) {
    const int at = nearest_vector(part, key + v * kLanes);
    const int row = at % part.block_tokens;
    const std::byte* tile = part.k_tiles[at / part.block_tokens];
    keys.scales[v] = tile + 2 * row;
    keys.bytes[v] = tile + 2 * part.block_tokens + row;
  }
  return keys;
}

HWY_INLINE ValuesAhead values_ahead(const PartKeys& part, int key, int k_dim) {
  ValuesAhead ahead;
  for (int v = 0; v < kBlockVectors; ++v) {
    const int at = nearest_vector(part, key + v * kLanes);
    ahead.at[v] = part.v_tiles[at / part.block_tokens] + at % part.block_tokens * part.v_row_bytes;
  }
  ahead.step = static_cast<ptrdiff_t>(ceil_div(kLanes * part.v_row_bytes, k_dim));
  return ahead;
}

// Scores of `rows` query rows for one register block of keys.
template <class T, bool kAhead>
HWY_INLINE void score_rows(const KeyVectors<T>& keys, const ValuesAhead& ahead, ptrdiff_t stride,
                           int rows, int k_dim, const float* q, float* scores) {
  for (int r = 0; r < rows; r += kBlockRows) {
    const float* qr = q + static_cast<ptrdiff_t>(r) * k_dim;
    float* to = scores + r * kScoreStride;
    switch (HWY_MIN(rows - r, kBlockRows)) {
      case 1:
        score_block<T, 1, kAhead>(keys, ahead, stride, k_dim, qr, to);
        break;
      case 2:
        score_block<T, 2, kAhead>(keys, ahead, stride, k_dim, qr, to);
        break;
      case 3:
        score_block<T, 3, kAhead>(keys, ahead, stride, k_dim, qr, to);
        break;
      case 4:
        score_block<T, 4, kAhead>(keys, ahead, stride, k_dim, qr, to);
        break;
      case 5:
        score_block<T, 5, kAhead>(keys, ahead, stride, k_dim, qr, to);
        break;
      default:
        if (kAhead && r == 0) {
          score_block<T, 6, kAhead>(keys, ahead, stride, k_dim, qr, to);
        } else {
          score_block<T, 6, false>(keys, ahead, stride, k_dim, qr, to);
        }
    }
  }
}

// Scores of `rows` query rows for all keys of the part (and, around them, of no use).
template <class T>
struct Score {
  static HWY_NOINLINE void run(const PartKeys& part, int rows, int k_dim, const float* q,
                               float* scores) {
    constexpr int kStep = kBlockVectors * kLanes;
    const ptrdiff_t stride = part.block_tokens;
    for (int key = part.begin / kStep * kStep; key < part.end; key += kStep) {
      score_rows<T, true>(key_vectors<T>(part, key), values_ahead(part, key, k_dim), stride, rows,
                          k_dim, q, scores + key);
    }
  }
};

// Weighted sums of V over one range of keys, added to those of `rows` rows.
template <class T>
struct Weigh {
  template <int C, bool kAhead>
  static HWY_INLINE void block(int rows, const ValueRange& keys, int v_dim, int column,
                               const float* p, float* sums) {
    const FloatTag d;
    const ptrdiff_t stride = static_cast<ptrdiff_t>(sum_stride(v_dim));
    switch (rows) {
      case 1:
        weigh_block<T, 1, C, kAhead>(d, keys, v_dim, column, p, sums, stride);
        break;
      case 2:
        weigh_block<T, 2, C, kAhead>(d, keys, v_dim, column, p, sums, stride);
        break;
      case 3:
        weigh_block<T, 3, C, kAhead>(d, keys, v_dim, column, p, sums, stride);
        break;
      case 4:
        weigh_block<T, 4, C, kAhead>(d, keys, v_dim, column, p, sums, stride);
        break;
      case 5:
        weigh_block<T, 5, C, kAhead>(d, keys, v_dim, column, p, sums, stride);
        break;
      default:
        weigh_block<T, 6, C, kAhead>(d, keys, v_dim, column, p, sums, stride);
    }
  }

  template <int C>
  static HWY_INLINE void columns(const ValueRange& keys, int v_dim, int column, int rows,
                                 const float* p, float* sums) {
    const ptrdiff_t stride = static_cast<ptrdiff_t>(sum_stride(v_dim));
    for (int r = 0; r < rows; r += kBlockRows) {
      const int n = HWY_MIN(rows - r, kBlockRows);
      if (r == 0 && keys.ahead) {
        block<C, true>(n, keys, v_dim, column, p, sums);
      } else {
        block<C, false>(n, keys, v_dim, column, p + r * kScoreStride, sums + r * stride);
      }
    }
  }

  static HWY_NOINLINE void run(const ValueRange& keys, int rows, int v_dim, const float* p,
                               float* sums) {
    int column = 0;
    for (; column + kBlockVectors * kLanes <= v_dim; column += kBlockVectors * kLanes) {
      columns<kBlockVectors>(keys, v_dim, column, rows, p, sums);
    }
    for (; column + kLanes <= v_dim; column += kLanes) {
      columns<1>(keys, v_dim, column, rows, p, sums);
    }
    // A width that is no multiple of the vector: element by element, never past a row's end.
    const hn::CappedTag<float, 1> one;
    const ptrdiff_t stride = static_cast<ptrdiff_t>(sum_stride(v_dim));
    for (; column < v_dim; ++column) {
      for (int r = 0; r < rows; ++r) {
        weigh_block<T, 1, 1, false>(one, keys, v_dim, column, p + r * kScoreStride,
                                    sums + r * stride, stride);
      }
    }
  }
};

// Tiles of many rows unpack what they read once and for all rows; the same bits either way.
template <QuantizedType T>
struct Score<T> {
  static HWY_NOINLINE void run(const PartKeys& part, int rows, int k_dim, const float* q,
                               float* scores) {
    constexpr int kStep = kBlockVectors * kLanes;
    const ptrdiff_t B = part.block_tokens;
    for (int key = part.begin / kStep * kStep; key < part.end; key += kStep) {
      const KeyVectors<T> keys = key_vectors<T>(part, key);
      const ValuesAhead ahead = values_ahead(part, key, k_dim);
      float* to = scores + key;
      switch (rows) {
        case 1:
          score_few<T, 1>(keys, ahead, B, k_dim, q, to);
          break;
        case 2:
          score_few<T, 2>(keys, ahead, B, k_dim, q, to);
          break;
        case 3:
          score_few<T, 3>(keys, ahead, B, k_dim, q, to);
          break;
        case 4:
          score_few<T, 4>(keys, ahead, B, k_dim, q, to);
          break;
        default:
          score_many<T>(keys, ahead, B, k_dim, rows, q, to);
      }
    }
  }
};

template <QuantizedType T>
struct Weigh<T> {
  static HWY_NOINLINE void run(const ValueRange& keys, int rows, int v_dim, const float* p,
                               float* sums) {
    HWY_ALIGN float scales[kPartRows];
    const ptrdiff_t stride = static_cast<ptrdiff_t>(sum_stride(v_dim));
    const int B = keys.block_tokens;
    const ptrdiff_t part_bytes = B * (2 + QuantizedBlock<T::kBits>::kBytes);
    const ptrdiff_t share = keys.ahead_bytes * kQuantizedElements / v_dim;
    for (int column = 0; column < v_dim; column += kQuantizedElements) {
      const ptrdiff_t index = column / kQuantizedElements;
      const ValuePart part{keys, column, index * part_bytes, index * share, share / B};
      load_part_scales(part, scales);
      if (rows > kFewRows) {
        weigh_many<T>(rows, part, scales, p, sums, stride);
      } else if (keys.ahead) {
        weigh_few<T, true>(rows, part, scales, p, sums, stride);
      } else {
        weigh_few<T, false>(rows, part, scales, p, sums, stride);
      }
    }
  }
};

// Adds sixteen sums in a fixed order.
HWY_INLINE float sum_of_16(const float* lanes) {
  float half[8];
  for (int i = 0; i < 8; ++i) half[i] = lanes[i] + lanes[i + 8];
  return ((half[0] + half[4]) + (half[2] + half[6])) + ((half[1] + half[5]) + (half[3] + half[7]));
}

// Turns one row's scores of the keys [begin, end) into exponentials, in place; gives maximum and
// denominator. Key i adds to sum i % 16, whatever the vectors' width.
HWY_INLINE void exponentials(float* scores, int begin, int end, float softcap, float& max_out,
                             float& denom_out) {
  const FloatTag d;
  const int first = begin / kLanes, last = (end - 1) / kLanes;
  const FloatVec cap = hn::Set(d, softcap), none = hn::Set(d, kNone);
  FloatVec highest = none;
  for (int v = first; v <= last; ++v) {
    FloatVec s = hn::LoadU(d, scores + v * kLanes);
    if (v == first || v == last) {
      const FloatVec key = hn::Iota(d, static_cast<float>(v * kLanes));
      const auto visible = hn::And(hn::Ge(key, hn::Set(d, static_cast<float>(begin))),
                                   hn::Lt(key, hn::Set(d, static_cast<float>(end))));
      s = hn::IfThenElseZero(visible, s);  // what is masked may be NaN, on which tanh is undefined
      if (softcap != 0.0f) s = hn::Mul(cap, hn::Tanh(d, s));
      s = hn::IfThenElse(visible, s, none);
    } else if (softcap != 0.0f) {
      s = hn::Mul(cap, hn::Tanh(d, s));
    }
    highest = hn::Max(highest, s);
    hn::StoreU(s, d, scores + v * kLanes);
  }
  highest = hn::MaxOfLanes(d, highest);
  max_out = hn::GetLane(highest);

  constexpr int kSums = 16 / kLanes;
  FloatVec sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = hn::Zero(d);
  HWY_ALIGN float lanes[16];
  if constexpr (kSums == 1) {
    for (int v = first; v <= last; ++v) {
      const FloatVec p = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + v * kLanes), highest));
      hn::StoreU(p, d, scores + v * kLanes);
      sums[0] = hn::Add(sums[0], p);
    }
    hn::StoreU(sums[0], d, lanes);
  } else {
    for (float& lane : lanes) lane = 0.0f;
    for (int v = first; v <= last; ++v) {
      const FloatVec p = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + v * kLanes), highest));
      hn::StoreU(p, d, scores + v * kLanes);
      float* sum = lanes + v % kSums * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(d, sum), p), d, sum);
    }
  }
  denom_out = sum_of_16(lanes);
}

HWY_INLINE float exp_of(float x) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(hn::Exp(d, hn::Set(d, x)));
}

// Merges one row's next part into what was merged before: max, denom and sums.
HWY_INLINE void merge_row(float part_max, float part_denom, const float* part_sums, int v_dim,
                          float& max, float& denom, float* sums) {
  if (part_max == kNone) return;  // reads none of the part's keys
  if (max == kNone) {
    max = part_max;
    denom = part_denom;
    std::memcpy(sums, part_sums, sizeof(float) * static_cast<size_t>(v_dim));
    return;
  }
  const float higher = HWY_MAX(max, part_max);
  const float keep = exp_of(max - higher), add = exp_of(part_max - higher);
  max = higher;
  denom = denom * keep + part_denom * add;
  const FloatTag d;
  const hn::CappedTag<float, 1> one;
  int i = 0;
  for (; i + kLanes <= v_dim; i += kLanes) {
    const FloatVec kept = hn::Mul(hn::LoadU(d, sums + i), hn::Set(d, keep));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, part_sums + i), hn::Set(d, add), kept), d, sums + i);
  }
  for (; i < v_dim; ++i) {
    const auto kept = hn::Mul(hn::LoadU(one, sums + i), hn::Set(one, keep));
    hn::StoreU(hn::MulAdd(hn::LoadU(one, part_sums + i), hn::Set(one, add), kept), one, sums + i);
  }
}

// Divides a row's sums by its denominator. A sink has a logit and no value.
HWY_INLINE void finish_row(const float* sink, int v_dim, float max, float denom, float* sums) {
  float factor = 1.0f;
  if (sink) {
    const float higher = HWY_MAX(max, *sink);
    factor = exp_of(max - higher);
    denom = denom * factor + exp_of(*sink - higher);
  }
  factor /= denom;
  for (int i = 0; i < v_dim; ++i) sums[i] *= factor;
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();
#endif

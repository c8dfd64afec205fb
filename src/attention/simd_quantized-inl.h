// The products over quantized tiles. An integer of 8 bits times an f16 scale is exact in f32: the
// products are those over the float tiles of the same values, bit by bit, but that the elements of
// a head come in the order in which they are unpacked. Included once per Highway target.
//
// A few rows of queries (a token's heads) unpack in registers on the way. Many rows (a prompt's
// tokens) share what is unpacked once, into a buffer of 32 KiB on the stack.
#if defined(WEIR_ATTENTION_SIMD_QUANTIZED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_ATTENTION_SIMD_QUANTIZED_INL_H_
#undef WEIR_ATTENTION_SIMD_QUANTIZED_INL_H_
#else
#define WEIR_ATTENTION_SIMD_QUANTIZED_INL_H_
#endif

#include <bit>
#include <cstring>

#include "attention/simd_block-inl.h"
#include "kv/quantized_block.h"

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

// Up to this many rows unpack on the way: registers for the sums of more are lacking.
constexpr int kFewRows = 4;

using IntTag = hn::RebindToSigned<FloatTag>;
using IntVec = hn::Vec<IntTag>;
using ByteTag = hn::Rebind<uint8_t, FloatTag>;

// kLanes bytes, one in each lane.
HWY_INLINE IntVec load_bytes(const std::byte* from) {
  return hn::PromoteTo(IntTag(), hn::LoadU(ByteTag(), reinterpret_cast<const uint8_t*>(from)));
}
HWY_INLINE FloatVec load_signed_bytes(const std::byte* from) {
  const hn::Rebind<int8_t, FloatTag> d8;
  const IntVec wide = hn::PromoteTo(IntTag(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(from)));
  return hn::ConvertTo(FloatTag(), wide);
}
HWY_INLINE FloatVec load_scales(const std::byte* from) {
  return load_wide(FloatTag(), reinterpret_cast<const hwy::float16_t*>(from));
}

// The integers whose low four bits are those of `low`, and whose other ones are `high`'s bits from
// bit 4 on. Whatever else the two hold is ignored.
template <int kBits>
HWY_INLINE FloatVec integers(IntVec low, IntVec high) {
  const IntTag d;
  IntVec bits = low;
  if constexpr (kBits > 4) {
    const IntVec mask = hn::Set(d, 15);
    bits = hn::Or(hn::And(mask, low), hn::AndNot(mask, high));
  }
#if HWY_TARGET == HWY_AVX3
  // A look-up takes its index from the low bits.
  if constexpr (kBits == 4) {
    const FloatVec table = hn::Iota(FloatTag(), -8.0f);
    return FloatVec{_mm512_permutexvar_ps(bits.raw, table.raw)};
  }
  if constexpr (kBits == 5) {
    const FloatVec below = hn::Iota(FloatTag(), -16.0f), above = hn::Iota(FloatTag(), 0.0f);
    return FloatVec{_mm512_permutex2var_ps(below.raw, bits.raw, above.raw)};
  }
#endif
  // Low bits of a float of 2^23 count ones.
  constexpr float kOnes = 0x1p23f;
  constexpr int kMask = (1 << kBits) - 1;
  bits = hn::Or(hn::And(bits, hn::Set(d, kMask)), hn::Set(d, std::bit_cast<int32_t>(kOnes)));
  return hn::Sub(hn::BitCast(FloatTag(), bits),
                 hn::Set(FloatTag(), kOnes + QuantizedBlock<kBits>::kOffset));
}

// `high`'s bits from `shift` on at bit 4.
HWY_INLINE IntVec moved_to_4(IntVec high, int shift) {
  return shift <= 4 ? hn::ShiftLeftSame(high, 4 - shift) : hn::ShiftRightSame(high, shift - 4);
}

// --- scores ------------------------------------------------------------------------------------

// Where each vector of keys has its scales and its bytes in the tile's first part.
template <QuantizedType T>
struct KeyVectors<T> {
  const std::byte* scales[kBlockVectors];
  const std::byte* bytes[kBlockVectors];
};

// Calls take(n, v, k) with the n-th element of the chain of the keys of vector v of V, for the 32
// elements of a part. bytes: of each vector's keys, byte after byte `B` apart.
template <int V, class Take>
HWY_INLINE void for_elements(Quantized<8>, const std::byte* const* bytes, ptrdiff_t B, Take take) {
  for (int i = 0; i < 32; ++i) {
    for (int v = 0; v < V; ++v) take(i, v, load_signed_bytes(bytes[v] + i * B));
  }
}

// A byte of low bits is two elements; those that share a byte of high bits come together. This is
// chain_element's order.
template <int V, int kBits, class Take>
HWY_INLINE void for_elements(Quantized<kBits>, const std::byte* const* bytes, ptrdiff_t B,
                             Take take) {
  using Block = QuantizedBlock<kBits>;
  constexpr int kStep = kBits == 4 ? 16 : Block::kHighBytes;
  for (int i = 0; i < kStep; ++i) {
    for (int v = 0; v < V; ++v) {
      IntVec high = hn::Zero(IntTag());
      if constexpr (kBits > 4) high = load_bytes(bytes[v] + Block::high_byte(i) * B);
      int n = i * (32 / kStep);
      for (int e = i; e < 16; e += kStep, n += 2) {
        const IntVec low = load_bytes(bytes[v] + e * B);
        take(n, v, integers<kBits>(low, moved_to_4(high, Block::high_shift(e))));
        take(n + 1, v,
             integers<kBits>(hn::ShiftRight<4>(low), moved_to_4(high, Block::high_shift(e + 16))));
      }
    }
  }
}

// The keys' part that holds elements `first` to first + 31 of the head.
template <QuantizedType T>
struct KeyPart {
  const std::byte* bytes[kBlockVectors];
  FloatVec scales[kBlockVectors];

  HWY_INLINE KeyPart(const KeyVectors<T>& keys, ptrdiff_t block_tokens, int first) {
    const ptrdiff_t part = block_tokens * (2 + QuantizedBlock<T::kBits>::kBytes);
    const ptrdiff_t at = first / kQuantizedElements * part;
    for (int v = 0; v < kBlockVectors; ++v) {
      bytes[v] = keys.bytes[v] + at;
      scales[v] = load_scales(keys.scales[v] + at);
    }
  }
};

// Asks for the share of what is ahead that goes with one part.
HWY_INLINE void ask_for_part(const ValuesAhead& ahead, int first) {
  constexpr ptrdiff_t kLine = 64;
  const ptrdiff_t end = (first + kQuantizedElements) * ahead.step;
  for (ptrdiff_t at = first * ahead.step; at < end; at += kLine) {
    for (int v = 0; v < kBlockVectors; ++v) __builtin_prefetch(ahead.at[v] + at, 0, 2);
  }
}

// Scores of R rows for kBlockVectors vectors of keys.
template <int R>
struct ScoreSums {
  FloatVec at[R][kBlockVectors];

  HWY_INLINE void clear() {
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kBlockVectors; ++v) at[r][v] = hn::Zero(FloatTag());
    }
  }
  HWY_INLINE void load(const float* scores) {
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kBlockVectors; ++v) {
        at[r][v] = hn::LoadU(FloatTag(), scores + r * kScoreStride + v * kLanes);
      }
    }
  }
  HWY_INLINE void store(float* scores) const {
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kBlockVectors; ++v) {
        hn::StoreU(at[r][v], FloatTag(), scores + r * kScoreStride + v * kLanes);
      }
    }
  }
  // k: one element of the keys of vector v; q: that element of the rows.
  HWY_INLINE void add(int v, FloatVec k, const float* HWY_RESTRICT q) {
    for (int r = 0; r < R; ++r) at[r][v] = hn::MulAdd(hn::Set(FloatTag(), q[r]), k, at[r][v]);
  }
};

// q: [k_dim][R] in the order of the chain; stride: block_tokens.
template <QuantizedType T, int R>
HWY_INLINE void score_few(const KeyVectors<T>& keys, const ValuesAhead& ahead, ptrdiff_t stride,
                          int k_dim, const float* HWY_RESTRICT q, float* HWY_RESTRICT scores) {
  ScoreSums<R> sums;
  sums.clear();
  for (int first = 0; first < k_dim; first += kQuantizedElements, q += kQuantizedElements * R) {
    ask_for_part(ahead, first);
    const KeyPart<T> part(keys, stride, first);
    for_elements<kBlockVectors>(T(), part.bytes, stride, [&](int n, int v, FloatVec k) HWY_ATTR {
      sums.add(v, hn::Mul(k, part.scales[v]), q + n * R);
    });
  }
  sums.store(scores);
}

// Some elements of kBlockVectors vectors of keys as floats, for tiles of many rows: unpacked once,
// into the first-level cache, where every register block finds them.
struct UnpackedKeys {
  static constexpr int kElements = 4 * kQuantizedElements;
  HWY_ALIGN float at[kElements][kBlockVectors * kLanes];
};

// Goes on with the chains of R rows, or begins them.
template <int R>
HWY_INLINE void score_unpacked(const UnpackedKeys& keys, int n_elements, bool begins,
                               const float* HWY_RESTRICT q, float* HWY_RESTRICT scores) {
  ScoreSums<R> sums;
  if (begins) {
    sums.clear();
  } else {
    sums.load(scores);
  }
  for (int n = 0; n < n_elements; ++n, q += R) {
    for (int v = 0; v < kBlockVectors; ++v) {
      sums.add(v, hn::Load(FloatTag(), keys.at[n] + v * kLanes), q);
    }
  }
  sums.store(scores);
}

// The same bits for any number of rows; q: register block after register block, [k_dim][rows of the
// block].
template <QuantizedType T>
HWY_INLINE void score_many(const KeyVectors<T>& keys, const ValuesAhead& ahead, ptrdiff_t stride,
                           int k_dim, int rows, const float* q, float* scores) {
  UnpackedKeys unpacked;
  for (int first = 0; first < k_dim; first += UnpackedKeys::kElements) {
    const int n_elements = HWY_MIN(k_dim - first, UnpackedKeys::kElements);
    for (int i = 0; i < n_elements; i += kQuantizedElements) {
      ask_for_part(ahead, first + i);
      const KeyPart<T> part(keys, stride, first + i);
      for_elements<kBlockVectors>(T(), part.bytes, stride, [&](int n, int v, FloatVec k) HWY_ATTR {
        hn::Store(hn::Mul(k, part.scales[v]), FloatTag(), unpacked.at[i + n] + v * kLanes);
      });
    }
    for (int r = 0; r < rows; r += kBlockRows) {
      const int n = HWY_MIN(rows - r, kBlockRows);
      const float* qr = q + static_cast<ptrdiff_t>(r) * k_dim + first * n;
      float* to = scores + r * kScoreStride;
      switch (n) {
        case 1:
          score_unpacked<1>(unpacked, n_elements, first == 0, qr, to);
          break;
        case 2:
          score_unpacked<2>(unpacked, n_elements, first == 0, qr, to);
          break;
        case 3:
          score_unpacked<3>(unpacked, n_elements, first == 0, qr, to);
          break;
        case 4:
          score_unpacked<4>(unpacked, n_elements, first == 0, qr, to);
          break;
        case 5:
          score_unpacked<5>(unpacked, n_elements, first == 0, qr, to);
          break;
        default:
          score_unpacked<6>(unpacked, n_elements, first == 0, qr, to);
      }
    }
  }
}

// --- weighted sums -----------------------------------------------------------------------------

// The lanes that share a byte of V, and their partners 16 columns on: columns first + lane and
// first + 16 + lane of 32.
struct ColumnPair {
  FloatVec low, high;
};

// row: the bytes of 32 columns of one key.
template <int kFirst>
HWY_INLINE ColumnPair load_columns(Quantized<8>, const std::byte* row) {
  return {load_signed_bytes(row + kFirst), load_signed_bytes(row + kFirst + 16)};
}
template <int kFirst>
HWY_INLINE ColumnPair load_columns(Quantized<4>, const std::byte* row) {
  const IntVec low = load_bytes(row + kFirst), none = hn::Zero(IntTag());
  return {integers<4>(low, none), integers<4>(hn::ShiftRight<4>(low), none)};
}
template <int kFirst>
HWY_INLINE ColumnPair load_columns(Quantized<5>, const std::byte* row) {
  // Four bytes in every lane; each lane shifts down to its own bit: of byte column % 4, bit
  // column / 4.
  const IntTag d;
  const hn::RebindToUnsigned<IntTag> du;
  uint32_t word;
  std::memcpy(&word, row + 16, sizeof word);  // little-endian, as Highway's targets are
  const auto column = hn::Iota(du, kFirst);
  const auto shift =
      hn::Add(hn::ShiftLeft<3>(hn::And(column, hn::Set(du, 3))), hn::ShiftRight<2>(column));
  const auto bits = hn::Shr(hn::Set(du, word), shift);
  const IntVec low = load_bytes(row + kFirst);
  const IntVec above = hn::BitCast(d, hn::ShiftLeft<4>(bits));
  const IntVec partner = hn::BitCast(d, bits);  // column + 16: four bits further up
  return {integers<5>(low, above), integers<5>(hn::ShiftRight<4>(low), partner)};
}
template <int kFirst>
HWY_INLINE ColumnPair load_columns(Quantized<6>, const std::byte* row) {
  // Byte column % 8; the two bits from column / 8 * 2 on.
  const IntTag d;
  const IntVec low = load_bytes(row + kFirst);
  IntVec high;
  if constexpr (kLanes == 16) {
    uint64_t word;
    std::memcpy(&word, row + 16, sizeof word);
    const hn::Repartition<uint64_t, ByteTag> d64;
    high = hn::PromoteTo(d, hn::BitCast(ByteTag(), hn::Set(d64, word)));
    const IntVec second = hn::ShiftLeft<1>(hn::ShiftRight<3>(hn::Iota(d, 0)));  // 0 or 2
    high = hn::Shr(high, second);
  } else {
    high = hn::ShiftRight<kFirst / 8 * 2>(load_bytes(row + 16 + kFirst % 8));
  }
  return {integers<6>(low, hn::ShiftLeft<4>(high)), integers<6>(hn::ShiftRight<4>(low), high)};
}

// One part of V tiles: 32 columns from `column` on.
struct ValuePart {
  const ValueRange& keys;
  int column;
  ptrdiff_t offset;       // bytes from a tile's start to the part
  ptrdiff_t ahead_begin;  // of the next K tiles: the share that is asked for meanwhile
  ptrdiff_t ahead_step;
};

// The range's keys' scales, at their index in the part. Lanes beside the range are of no use.
HWY_INLINE void load_part_scales(const ValuePart& part, float* HWY_RESTRICT scales) {
  const ValueRange& keys = part.keys;
  for (int key = keys.begin / kLanes * kLanes; key < keys.end; key += kLanes) {
    const int tile = key / keys.block_tokens, in_block = key % keys.block_tokens;
    hn::StoreU(load_scales(keys.tiles[tile] + part.offset + 2 * in_block), FloatTag(),
               scales + key);
  }
}

template <QuantizedType T, int kFirst>
HWY_INLINE ColumnPair scaled_columns(const std::byte* row, float scale) {
  const ColumnPair v = load_columns<kFirst>(T(), row);
  const FloatVec s = hn::Set(FloatTag(), scale);
  return {hn::Mul(v.low, s), hn::Mul(v.high, s)};
}

// The sums of R rows for a pair of vectors of columns.
template <int R>
struct PairSums {
  FloatVec at[R][2];

  HWY_INLINE void load(const float* sums, ptrdiff_t stride) {
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < 2; ++c) at[r][c] = hn::LoadU(FloatTag(), sums + r * stride + c * 16);
    }
  }
  HWY_INLINE void store(float* sums, ptrdiff_t stride) const {
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < 2; ++c) hn::StoreU(at[r][c], FloatTag(), sums + r * stride + c * 16);
    }
  }
  // p: of one key.
  HWY_INLINE void add(const ColumnPair& v, const float* HWY_RESTRICT p) {
    for (int r = 0; r < R; ++r) {
      const FloatVec w = hn::Set(FloatTag(), p[r * kScoreStride]);
      at[r][0] = hn::MulAdd(w, v.low, at[r][0]);
      at[r][1] = hn::MulAdd(w, v.high, at[r][1]);
    }
  }
};

// Adds to the sums of R rows, for columns kFirst + lane and kFirst + 16 + lane of the part.
template <QuantizedType T, int R, int kFirst, bool kAhead>
HWY_INLINE void weigh_pair(const ValuePart& part, const float* HWY_RESTRICT scales,
                           const float* HWY_RESTRICT p, float* HWY_RESTRICT sums,
                           ptrdiff_t stride) {
  constexpr ptrdiff_t kBytes = QuantizedBlock<T::kBits>::kBytes;
  const ValueRange& keys = part.keys;
  PairSums<R> acc;
  acc.load(sums + part.column + kFirst, stride);
  for (int key = keys.begin; key < keys.end;) {
    const int tile = key / keys.block_tokens, in_block = key % keys.block_tokens;
    const int stop = HWY_MIN(keys.end, key - in_block + keys.block_tokens);
    const std::byte* HWY_RESTRICT row =
        keys.tiles[tile] + part.offset + 2 * keys.block_tokens + in_block * kBytes;
    const std::byte* ahead =
        kAhead ? keys.ahead[tile] + part.ahead_begin + in_block * part.ahead_step : nullptr;
    for (; key < stop; ++key, row += kBytes) {
      if constexpr (kAhead) {
        __builtin_prefetch(ahead, 0, 2);
        __builtin_prefetch(ahead + part.ahead_step / 2, 0, 2);
        ahead += part.ahead_step;
      }
      acc.add(scaled_columns<T, kFirst>(row, scales[key]), p + key);
    }
  }
  acc.store(sums + part.column + kFirst, stride);
}

// All 32 columns of the part; asks for what is ahead while it walks through the first ones.
template <QuantizedType T, int R, bool kAhead, int kFirst = 0>
HWY_INLINE void weigh_part(const ValuePart& part, const float* scales, const float* p, float* sums,
                           ptrdiff_t stride) {
  weigh_pair<T, R, kFirst, kAhead && kFirst == 0>(part, scales, p, sums, stride);
  if constexpr (kFirst + kLanes < 16) {
    weigh_part<T, R, kAhead, kFirst + kLanes>(part, scales, p, sums, stride);
  }
}

template <QuantizedType T, bool kAhead>
HWY_INLINE void weigh_few(int rows, const ValuePart& part, const float* scales, const float* p,
                          float* sums, ptrdiff_t stride) {
  switch (rows) {
    case 1:
      return weigh_part<T, 1, kAhead>(part, scales, p, sums, stride);
    case 2:
      return weigh_part<T, 2, kAhead>(part, scales, p, sums, stride);
    case 3:
      return weigh_part<T, 3, kAhead>(part, scales, p, sums, stride);
    default:
      return weigh_part<T, 4, kAhead>(part, scales, p, sums, stride);
  }
}

// For tiles of many rows: 32 columns of a part's values, unpacked once.
struct UnpackedValues {
  HWY_ALIGN float at[kPartRows][kQuantizedElements];
};

template <QuantizedType T, int kFirst = 0>
HWY_INLINE void unpack_columns(const std::byte* row, float scale, float* HWY_RESTRICT to) {
  const ColumnPair v = scaled_columns<T, kFirst>(row, scale);
  hn::Store(v.low, FloatTag(), to + kFirst);
  hn::Store(v.high, FloatTag(), to + kFirst + 16);
  if constexpr (kFirst + kLanes < 16) unpack_columns<T, kFirst + kLanes>(row, scale, to);
}

template <int R>
HWY_INLINE void weigh_unpacked(const UnpackedValues& values, const ValueRange& keys,
                               const float* HWY_RESTRICT p, float* HWY_RESTRICT sums,
                               ptrdiff_t stride) {
  for (int column = 0; column < 16; column += kLanes) {
    PairSums<R> acc;
    acc.load(sums + column, stride);
    for (int key = keys.begin; key < keys.end; ++key) {
      const float* v = values.at[key] + column;
      acc.add({hn::Load(FloatTag(), v), hn::Load(FloatTag(), v + 16)}, p + key);
    }
    acc.store(sums + column, stride);
  }
}

// The same bits as weigh_few, for any number of rows.
template <QuantizedType T>
HWY_INLINE void weigh_many(int rows, const ValuePart& part, const float* scales, const float* p,
                           float* sums, ptrdiff_t stride) {
  constexpr ptrdiff_t kBytes = QuantizedBlock<T::kBits>::kBytes, kLine = 64;
  const ValueRange& keys = part.keys;
  UnpackedValues unpacked;
  for (int key = keys.begin; key < keys.end;) {
    const int tile = key / keys.block_tokens, in_block = key % keys.block_tokens;
    const int n = HWY_MIN(keys.end - key, keys.block_tokens - in_block);
    const std::byte* row =
        keys.tiles[tile] + part.offset + 2 * keys.block_tokens + in_block * kBytes;
    if (keys.ahead) {
      const std::byte* ahead = keys.ahead[tile] + part.ahead_begin + in_block * part.ahead_step;
      for (ptrdiff_t at = 0; at < n * part.ahead_step; at += kLine) {
        __builtin_prefetch(ahead + at, 0, 2);
      }
    }
    for (const int stop = key + n; key < stop; ++key, row += kBytes) {
      unpack_columns<T>(row, scales[key], unpacked.at[key]);
    }
  }
  for (int r = 0; r < rows; r += kBlockRows) {
    const float* pr = p + r * kScoreStride;
    float* to = sums + r * stride + part.column;
    switch (HWY_MIN(rows - r, kBlockRows)) {
      case 1:
        weigh_unpacked<1>(unpacked, keys, pr, to, stride);
        break;
      case 2:
        weigh_unpacked<2>(unpacked, keys, pr, to, stride);
        break;
      case 3:
        weigh_unpacked<3>(unpacked, keys, pr, to, stride);
        break;
      case 4:
        weigh_unpacked<4>(unpacked, keys, pr, to, stride);
        break;
      case 5:
        weigh_unpacked<5>(unpacked, keys, pr, to, stride);
        break;
      default:
        weigh_unpacked<6>(unpacked, keys, pr, to, stride);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();
#endif

// The products over quantized tiles: integers are widened in registers, scales stay out of the inner
// loops. Included once per Highway target.
//
// A score is, over the head's blocks of 32 in order, a chain of fused multiply-adds of scale and
// block sum; a block sum one chain over its elements in the order in which they are unpacked. In a
// weighted sum the scale belongs to the key's weight: weight * scale, rounded, times the integer.
#if defined(WEIR_ATTENTION_SIMD_QUANTIZED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_ATTENTION_SIMD_QUANTIZED_INL_H_
#undef WEIR_ATTENTION_SIMD_QUANTIZED_INL_H_
#else
#define WEIR_ATTENTION_SIMD_QUANTIZED_INL_H_
#endif

#include "attention/simd_block-inl.h"
#include "kv/quantized_block.h"

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<FloatTag>;
using IntVec = hn::Vec<IntTag>;
using ByteTag = hn::Rebind<uint8_t, FloatTag>;

// kLanes bytes, one in each lane.
HWY_INLINE IntVec load_bytes(const std::byte* from) {
  return hn::PromoteTo(IntTag(), hn::LoadU(ByteTag(), reinterpret_cast<const uint8_t*>(from)));
}
HWY_INLINE FloatVec load_signed_bytes(const std::byte* from) {
  const hn::Rebind<int8_t, FloatTag> d8;
  const IntVec wide =
      hn::PromoteTo(IntTag(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(from)));
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
  bits = hn::And(bits, hn::Set(d, (1 << kBits) - 1));
  return hn::ConvertTo(FloatTag(), hn::Sub(bits, hn::Set(d, QuantizedBlock<kBits>::kOffset)));
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

// The sums of one part: R rows of queries, kBlockVectors vectors of keys.
template <int R>
struct BlockSums {
  FloatVec at[R][kBlockVectors];

  HWY_INLINE void clear() {
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kBlockVectors; ++v) at[r][v] = hn::Zero(FloatTag());
    }
  }
  // k: one element of the keys of vector v; q: that element of the rows.
  HWY_INLINE void add(int v, FloatVec k, const float* HWY_RESTRICT q) {
    for (int r = 0; r < R; ++r) at[r][v] = hn::MulAdd(hn::Set(FloatTag(), q[r]), k, at[r][v]);
  }
};

// Adds the products of 32 elements. bytes: of each vector's keys, element after element `B` apart;
// q: [32][R].
template <int R>
HWY_INLINE void add_part(Quantized<8>, const std::byte* const* bytes, ptrdiff_t B,
                         const float* HWY_RESTRICT q, BlockSums<R>& sums) {
  for (int i = 0; i < 32; ++i) {
    for (int v = 0; v < kBlockVectors; ++v) {
      sums.add(v, load_signed_bytes(bytes[v] + i * B), q + i * R);
    }
  }
}

// A byte of low bits is two elements; those that share a byte of high bits come together.
template <int R, int kBits>
HWY_INLINE void add_part(Quantized<kBits>, const std::byte* const* bytes, ptrdiff_t B,
                         const float* HWY_RESTRICT q, BlockSums<R>& sums) {
  using Block = QuantizedBlock<kBits>;
  constexpr int kStep = kBits == 4 ? 16 : Block::kHighBytes;
  for (int i = 0; i < kStep; ++i) {
    for (int v = 0; v < kBlockVectors; ++v) {
      IntVec high = hn::Zero(IntTag());
      if constexpr (kBits > 4) high = load_bytes(bytes[v] + Block::high_byte(i) * B);
      for (int e = i; e < 16; e += kStep) {
        const IntVec low = load_bytes(bytes[v] + e * B);
        sums.add(v, integers<kBits>(low, moved_to_4(high, Block::high_shift(e))), q + e * R);
        sums.add(v,
                 integers<kBits>(hn::ShiftRight<4>(low),
                                 moved_to_4(high, Block::high_shift(e + 16))),
                 q + (e + 16) * R);
      }
    }
  }
}

// As for floats. stride: block_tokens.
template <QuantizedType T, int R, bool kAhead>
HWY_INLINE void score_block(const KeyVectors<T>& keys, const ValuesAhead& ahead, ptrdiff_t stride,
                            int k_dim, const float* HWY_RESTRICT q, float* HWY_RESTRICT scores) {
  const FloatTag d;
  constexpr ptrdiff_t kLine = 64;
  const ptrdiff_t part = stride * (2 + QuantizedBlock<T::kBits>::kBytes);
  const ptrdiff_t ahead_part = ahead.step * kQuantizedElements;
  ptrdiff_t at = 0, ahead_at = 0;
  for (int i = 0; i < k_dim; i += kQuantizedElements, at += part, q += kQuantizedElements * R) {
    const std::byte* bytes[kBlockVectors];
    for (int v = 0; v < kBlockVectors; ++v) bytes[v] = keys.bytes[v] + at;
    if constexpr (kAhead) {
      for (const ptrdiff_t end = ahead_at + ahead_part; ahead_at < end; ahead_at += kLine) {
        for (int v = 0; v < kBlockVectors; ++v) __builtin_prefetch(ahead.at[v] + ahead_at, 0, 2);
      }
    }
    BlockSums<R> sums;
    sums.clear();
    add_part<R>(T(), bytes, stride, q, sums);
    for (int v = 0; v < kBlockVectors; ++v) {
      const FloatVec scale = load_scales(keys.scales[v] + at);
      for (int r = 0; r < R; ++r) {
        float* score = scores + r * kScoreStride + v * kLanes;
        const FloatVec before = i == 0 ? hn::Zero(d) : hn::LoadU(d, score);
        hn::StoreU(hn::MulAdd(scale, sums.at[r][v], before), d, score);
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
  const auto shift = hn::Add(hn::ShiftLeft<3>(hn::And(column, hn::Set(du, 3))),
                             hn::ShiftRight<2>(column));
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

// weights[r][key] = p[r][key] * the key's scale, for R rows. Lanes beside the range are of no use.
template <class T>
HWY_INLINE void scale_weights(const ValuePart& part, int rows, const float* HWY_RESTRICT p,
                              float* HWY_RESTRICT weights) {
  const FloatTag d;
  const ValueRange& keys = part.keys;
  for (int key = keys.begin / kLanes * kLanes; key < keys.end; key += kLanes) {
    const int tile = key / keys.block_tokens, in_block = key % keys.block_tokens;
    const FloatVec scale = load_scales(keys.tiles[tile] + part.offset + 2 * in_block);
    for (int r = 0; r < rows; ++r) {
      const ptrdiff_t at = r * kScoreStride + key;
      hn::StoreU(hn::Mul(hn::LoadU(d, p + at), scale), d, weights + at);
    }
  }
}

// Adds to the sums of R rows, for columns kFirst + lane and kFirst + 16 + lane of the part.
template <QuantizedType T, int R, int kFirst, bool kAhead>
HWY_INLINE void weigh_pair(const ValuePart& part, const float* HWY_RESTRICT weights,
                           float* HWY_RESTRICT sums, ptrdiff_t stride) {
  const FloatTag d;
  constexpr ptrdiff_t kBytes = QuantizedBlock<T::kBits>::kBytes;
  const ValueRange& keys = part.keys;
  float* first = sums + part.column + kFirst;
  FloatVec acc[R][2];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < 2; ++c) acc[r][c] = hn::LoadU(d, first + r * stride + c * 16);
  }
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
      const ColumnPair v = load_columns<kFirst>(T(), row);
      for (int r = 0; r < R; ++r) {
        const FloatVec w = hn::Set(d, weights[r * kScoreStride + key]);
        acc[r][0] = hn::MulAdd(w, v.low, acc[r][0]);
        acc[r][1] = hn::MulAdd(w, v.high, acc[r][1]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < 2; ++c) hn::StoreU(acc[r][c], d, first + r * stride + c * 16);
  }
}

// All 32 columns of the part; asks for what is ahead while it walks through the first ones.
template <QuantizedType T, int R, bool kAhead, int kFirst = 0>
HWY_INLINE void weigh_part(const ValuePart& part, const float* weights, float* sums,
                           ptrdiff_t stride) {
  weigh_pair<T, R, kFirst, kAhead && kFirst == 0>(part, weights, sums, stride);
  if constexpr (kFirst + kLanes < 16) {
    weigh_part<T, R, kAhead, kFirst + kLanes>(part, weights, sums, stride);
  }
}

template <QuantizedType T, bool kAhead>
HWY_INLINE void weigh_part_rows(int rows, const ValuePart& part, const float* weights, float* sums,
                                ptrdiff_t stride) {
  switch (rows) {
    case 1:
      return weigh_part<T, 1, kAhead>(part, weights, sums, stride);
    case 2:
      return weigh_part<T, 2, kAhead>(part, weights, sums, stride);
    case 3:
      return weigh_part<T, 3, kAhead>(part, weights, sums, stride);
    case 4:
      return weigh_part<T, 4, kAhead>(part, weights, sums, stride);
    case 5:
      return weigh_part<T, 5, kAhead>(part, weights, sums, stride);
    default:
      return weigh_part<T, 6, kAhead>(part, weights, sums, stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();
#endif

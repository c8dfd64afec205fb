#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/half.h"

namespace weir {

// Elements of a row that share a scale.
constexpr int kQuantizedElements = 32;

// 32 consecutive elements of one row as integers of kBits bits (8, 6, 5 or 4) and an f16 scale:
// element = scale * integer.
//
// 8 bits: one signed byte each. Fewer: 2^(kBits-1) is added to make them unsigned; then
// - byte i of 16 holds the low four bits of element i and, above them, those of element i + 16;
// - 6 bits: byte 16 + i of 8 holds the two high bits of elements i, i + 8, i + 16, i + 24, lowest
//   first; 5 bits: byte 16 + i of 4 holds the high bit of elements i, i + 4, ..., i + 28.
// So whatever runs over vector lanes, keys of a transposed tile or elements of a row, is unpacked
// by the same shift for all lanes or by constant ones.
template <int kBits>
struct QuantizedBlock {
  static constexpr int kBytes = kBits * kQuantizedElements / 8;  // of the integers
  static constexpr int kOffset = kBits == 8 ? 0 : 1 << (kBits - 1);
  uint16_t scale = 0;
  uint8_t bytes[kBytes] = {};

  // The bits of an element above its low four: which byte has them, and how far up.
  static constexpr int kHighBytes = kBits == 6 ? 8 : 4;
  static constexpr int high_byte(int element) { return 16 + element % kHighBytes; }
  static constexpr int high_shift(int element) { return element / kHighBytes * (kBits - 4); }

  int integer(int element) const;
};

template <int kBits>
int QuantizedBlock<kBits>::integer(int element) const {
  if constexpr (kBits == 8) return std::bit_cast<int8_t>(bytes[element]);
  int bits = bytes[element % 16] >> (element / 16 * 4) & 15;
  if constexpr (kBits == 5 || kBits == 6) {
    constexpr int kMask = (1 << (kBits - 4)) - 1;
    bits |= (bytes[high_byte(element)] >> high_shift(element) & kMask) << 4;
  }
  return bits - kOffset;
}

// The element of the largest magnitude is the one that a scale must fit. With 8 bits it becomes
// 127 or -127; with fewer always the lowest integer, which has no counterpart above zero, and the
// scale's sign follows. Integers are to the scale as rounded to f16. A block with an element that
// is not finite, or too large for the scale (65504 times the largest integer), is NaN throughout.
template <int kBits>
QuantizedBlock<kBits> quantize(const float* in) {
  using Block = QuantizedBlock<kBits>;
  constexpr int kLowest = kBits == 8 ? -127 : -Block::kOffset;
  constexpr int kHighest = kBits == 8 ? 127 : Block::kOffset - 1;
  Block block;
  float extreme = 0, not_finite = 0;
  for (int i = 0; i < kQuantizedElements; ++i) {
    if (std::abs(in[i]) > std::abs(extreme)) extreme = in[i];
    not_finite += in[i] * 0.0f;  // NaN if it is not
  }
  const float scale = (kBits == 8 ? std::abs(extreme) / 127.0f : extreme / kLowest) + not_finite;
  block.scale = float_to_half(scale);
  constexpr uint16_t kExponent = 0x7c00, kNaN = 0x7e00;
  if ((block.scale & kExponent) == kExponent) {
    block.scale = kNaN;
    return block;
  }
  const float stored = half_to_float(block.scale);
  const float inverse = stored != 0.0f ? 1.0f / stored : 0.0f;
  for (int i = 0; i < kQuantizedElements; ++i) {
    // Adding 1.5 * 2^23 rounds to an integer, half to even, and leaves it in the low bits. A scale
    // that f16 holds badly (below 2^-14) can overshoot the range by a lot: cut first.
    constexpr float kRound = 12582912.0f;
    const float wanted = std::fmin(std::fmax(in[i] * inverse, kLowest), kHighest);
    const int q = std::bit_cast<int32_t>(wanted + kRound) - std::bit_cast<int32_t>(kRound);
    if constexpr (kBits == 8) {
      block.bytes[i] = static_cast<uint8_t>(q);
    } else {
      const int bits = q + Block::kOffset;
      block.bytes[i % 16] |= static_cast<uint8_t>((bits & 15) << (i / 16 * 4));
      if constexpr (kBits > 4) {
        block.bytes[Block::high_byte(i)] |=
            static_cast<uint8_t>((bits >> 4) << Block::high_shift(i));
      }
    }
  }
  return block;
}

// Any bytes are some block.
template <int kBits>
void dequantize(const QuantizedBlock<kBits>& block, float* out) {
  const float scale = half_to_float(block.scale);
  for (int i = 0; i < kQuantizedElements; ++i) {
    out[i] = scale * static_cast<float>(block.integer(i));
  }
}

}  // namespace weir

#pragma once

#include <bit>
#include <cstdint>

namespace weir {

// Conversions between float and the two 16-bit types, round to nearest even. Subnormals and
// infinities are kept, what is too large becomes an infinity, a NaN stays a NaN (made quiet).

constexpr uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((size >> 13) & 0x3ffu));
  // From 65520 on, half way between the largest finite value and the next step.
  if (size >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (size >= 0x38800000u) {  // at least 2^-14: a normal half, exponent bias 127 -> 15
    const uint32_t rebased = size - (112u << 23);
    return static_cast<uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
  }
  if (size <= 0x33000000u) return static_cast<uint16_t>(sign);  // up to 2^-25, a tie to even
  // A multiple of 2^-24: shift the full mantissa and round.
  const uint32_t shift = 126u - (size >> 23);
  const uint32_t mantissa = (size & 0x7fffffu) | 0x800000u;
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1u);
  const uint32_t tie = 1u << (shift - 1);
  const uint32_t up = rest > tie || (rest == tie && (kept & 1u)) ? 1u : 0u;
  return static_cast<uint16_t>(sign | (kept + up));
}

constexpr float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float size = static_cast<float>(mantissa) * 0x1p-24f;  // exact
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(size));
}

constexpr uint16_t float_to_bfloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float bfloat_to_float(uint16_t bfloat) {
  return std::bit_cast<float>(static_cast<uint32_t>(bfloat) << 16);
}

}  // namespace weir

#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace weir {
namespace {

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

// The value of a half, from the definition of the format.
double half_value(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return half & 0x8000 ? -size : size;
}

bool is_nan(uint16_t half) { return (half & 0x7fff) > 0x7c00; }

TEST(Half, EveryHalfDecodesToItsValueAndBack) {
  for (uint32_t i = 0; i <= 0xffff; ++i) {
    const uint16_t half = static_cast<uint16_t>(i);
    const float value = half_to_float(half);
    if (is_nan(half)) {
      EXPECT_TRUE(std::isnan(value)) << i;
      EXPECT_TRUE(is_nan(float_to_half(value))) << i;
      continue;
    }
    if ((half & 0x7fff) == 0x7c00) {
      EXPECT_TRUE(std::isinf(value)) << i;
    } else {
      EXPECT_EQ(value, half_value(half)) << i;
    }
    EXPECT_EQ(std::signbit(value), (half & 0x8000) != 0) << i;
    EXPECT_EQ(float_to_half(value), half);
  }
}

// Between two neighbours the nearer one, and at the middle the even one.
TEST(Half, RoundsToNearestEven) {
  for (uint16_t half = 0; half < 0x7c00; ++half) {
    const double low = half_value(half);
    const double high = half == 0x7bff ? 65536.0 : half_value(half + 1);  // as if it went on
    const float middle = static_cast<float>((low + high) / 2);            // exact in a float
    const uint16_t even = half % 2 == 0 ? half : static_cast<uint16_t>(half + 1);
    EXPECT_EQ(float_to_half(middle), even) << half;
    EXPECT_EQ(float_to_half(std::nextafter(middle, 0.0f)), half) << half;
    EXPECT_EQ(float_to_half(std::nextafter(middle, 1e30f)), half + 1) << half;
    EXPECT_EQ(float_to_half(-middle), even | 0x8000) << half;
  }
}

TEST(Half, KeepsWhatIsNotANumberAndCutsWhatIsTooLarge) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_to_half(infinity), 0x7c00);
  EXPECT_EQ(float_to_half(-infinity), 0xfc00);
  EXPECT_EQ(float_to_half(3e38f), 0x7c00);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(float_to_half(-0.0f), 0x8000);
  // NaNs whose payload is only in the bits that are cut.
  for (const uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu}) {
    EXPECT_TRUE(is_nan(float_to_half(std::bit_cast<float>(nan)))) << nan;
    EXPECT_TRUE(std::isnan(bfloat_to_float(float_to_bfloat(std::bit_cast<float>(nan))))) << nan;
  }
}

TEST(Half, BfloatRoundsToNearestEven) {
  for (uint32_t i = 0; i <= 0xffff; ++i) {
    const uint16_t bfloat = static_cast<uint16_t>(i);
    const float value = bfloat_to_float(bfloat);
    if (std::isnan(value)) continue;
    EXPECT_EQ(bits(value), i << 16);
    EXPECT_EQ(float_to_bfloat(value), bfloat);
    if (std::isinf(value)) continue;
    const uint16_t even = i % 2 == 0 ? bfloat : static_cast<uint16_t>(i + 1);
    EXPECT_EQ(float_to_bfloat(std::bit_cast<float>(i << 16 | 0x8000)), even) << i;
    EXPECT_EQ(float_to_bfloat(std::bit_cast<float>(i << 16 | 0x7fff)), bfloat) << i;
    EXPECT_EQ(float_to_bfloat(std::bit_cast<float>(i << 16 | 0x8001)), i + 1) << i;
  }
}

#if defined(__FLT16_MANT_DIG__)
TEST(Half, AgreesWithTheCompilersType) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    const _Float16 expected = static_cast<_Float16>(value);
    uint16_t expected_bits;
    std::memcpy(&expected_bits, &expected, sizeof expected_bits);
    ASSERT_EQ(float_to_half(value), expected_bits) << value;
    ASSERT_EQ(half_to_float(expected_bits), static_cast<float>(expected));
  }
}
#endif

}  // namespace
}  // namespace weir

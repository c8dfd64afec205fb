#include "kv/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "base/half.h"
#include "kv/block_rows.h"
#include "kv/hadamard.h"
#include "kv/testing/small_store.h"

namespace weir {
namespace {

constexpr KvType kFloatTypes[] = {KvType::f32, KvType::f16, KvType::bf16};
constexpr KvType kQuantizedTypes[] = {KvType::q8_0, KvType::q6_0, KvType::q5_0, KvType::q4_0};

int bits_of(KvType type) {
  return type == KvType::q8_0 ? 8 : type == KvType::q6_0 ? 6 : type == KvType::q5_0 ? 5 : 4;
}

std::vector<float> random_row(int dim, uint32_t seed, float spread = 1.0f) {
  std::minstd_rand random(seed + 1);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row;
  for (int d = 0; d < dim; ++d) row.push_back(normal(random));
  return row;
}

// Values that every float type holds exactly.
std::vector<float> ramp(int dim, float start) {
  std::vector<float> row;
  for (int d = 0; d < dim; ++d) row.push_back(start + static_cast<float>(d % 32) * 0.5f);
  return row;
}

TEST(Codec, RowsComeBackAndTouchNoOther) {
  for (const KvType type : kFloatTypes) {
    for (const auto& [B, dim] : {std::pair{1, 1}, {16, 24}, {32, 64}, {4, 3}}) {
      const Codec& codec = codec_of(type);
      const size_t bytes = static_cast<size_t>(B * kv_row_bytes(type, dim));
      std::vector<std::byte> k(bytes + 16, std::byte{0xab}), v = k;
      for (int row = B - 1; row >= 0; --row) {
        codec.encode_k(k.data(), B, row, ramp(dim, static_cast<float>(row)));
        codec.encode_v(v.data(), B, row, ramp(dim, static_cast<float>(-row)));
      }
      std::vector<float> out(static_cast<size_t>(dim));
      for (int row = 0; row < B; ++row) {
        codec.decode_k(k.data(), B, row, out);
        EXPECT_EQ(out, ramp(dim, static_cast<float>(row)));
        codec.decode_v(v.data(), B, row, out);
        EXPECT_EQ(out, ramp(dim, static_cast<float>(-row)));
      }
      for (size_t i = bytes; i < bytes + 16; ++i) {
        EXPECT_EQ(k[i], std::byte{0xab});
        EXPECT_EQ(v[i], std::byte{0xab});
      }
    }
  }
}

// Kernels rely on it: a K tile is [k_dim][B], a V tile [B][v_dim].
TEST(Codec, KeyTilesAreTransposed) {
  constexpr int kB = 16, kDim = 8, kRow = 5;
  std::vector<uint16_t> k(kB * kDim), v(kB * kDim);
  const Codec& codec = codec_of(KvType::f16);
  codec.encode_k(reinterpret_cast<std::byte*>(k.data()), kB, kRow, ramp(kDim, 1.0f));
  codec.encode_v(reinterpret_cast<std::byte*>(v.data()), kB, kRow, ramp(kDim, 1.0f));
  for (int d = 0; d < kDim; ++d) {
    const uint16_t expected = float_to_half(1.0f + static_cast<float>(d) * 0.5f);
    EXPECT_EQ(k[static_cast<size_t>(d * kB + kRow)], expected);
    EXPECT_EQ(v[static_cast<size_t>(kRow * kDim + d)], expected);
  }
}

// --- quantized types ---------------------------------------------------------------------------

// An integer is off by half a step and the scale, rounded to f16, by 2^-11 of itself: for an
// element that is at most the largest, half a step and what the scale's error makes of the integer.
// The end of the range without a counterpart costs one more half step, with fewer than 8 bits.
TEST(QuantizedCodec, EveryElementIsWithinHalfAStep) {
  for (const KvType type : kQuantizedTypes) {
    const double lowest = type == KvType::q8_0 ? 127 : 1 << (bits_of(type) - 1);
    for (uint32_t seed = 0; seed < 500; ++seed) {
      constexpr int kDim = 96, kB = 16;
      const std::vector<float> row = random_row(kDim, seed, std::ldexp(1.0f, seed % 20 - 6));
      std::vector<std::byte> tile(static_cast<size_t>(kB * kv_row_bytes(type, kDim)));
      std::vector<float> k(kDim), v(kDim);
      codec_of(type).encode_k(tile.data(), kB, seed % kB, row);
      codec_of(type).decode_k(tile.data(), kB, seed % kB, k);
      codec_of(type).encode_v(tile.data(), kB, seed % kB, row);
      codec_of(type).decode_v(tile.data(), kB, seed % kB, v);
      EXPECT_EQ(k, v);
      for (int part = 0; part < kDim; part += 32) {
        double largest = 0;
        for (int i = part; i < part + 32; ++i)
          largest = std::max(largest, std::abs(double{row[i]}));
        const double step = largest / lowest;
        for (int i = part; i < part + 32; ++i) {
          // The extreme itself is an end of the range; the opposite sign may be cut there.
          const bool is_cut = type != KvType::q8_0 && std::abs(row[i]) > (lowest - 1.5) * step;
          const double limit = step * (is_cut ? 1.0 : 0.5) + largest * 0x1p-10;
          EXPECT_NEAR(k[i], row[i], limit) << kv_type_name(type) << " seed " << seed << " at " << i;
        }
      }
    }
  }
}

TEST(QuantizedCodec, RowsDependOnNothingBesideThem) {
  constexpr int kDim = 64;
  for (const KvType type : kQuantizedTypes) {
    for (const int B : {1, 16, 32, 64}) {
      const Codec& codec = codec_of(type);
      const size_t bytes = static_cast<size_t>(B * kv_row_bytes(type, kDim));
      std::vector<std::byte> k(bytes + 16, std::byte{0xff}), v = k;
      std::vector<std::vector<float>> k_alone, v_alone;
      for (int row = B - 1; row >= 0; --row) {
        codec.encode_k(k.data(), B, row, random_row(kDim, static_cast<uint32_t>(row)));
        codec.encode_v(v.data(), B, row, random_row(kDim, static_cast<uint32_t>(row) + 1000));
      }
      for (int row = 0; row < B; ++row) {
        std::vector<std::byte> one(static_cast<size_t>(kv_row_bytes(type, kDim)));
        std::vector<float> expected(kDim), out(kDim);
        codec.encode_k(one.data(), 1, 0, random_row(kDim, static_cast<uint32_t>(row)));
        codec.decode_k(one.data(), 1, 0, expected);
        codec.decode_k(k.data(), B, row, out);
        EXPECT_EQ(out, expected);
        codec.encode_v(one.data(), 1, 0, random_row(kDim, static_cast<uint32_t>(row) + 1000));
        codec.decode_v(one.data(), 1, 0, expected);
        codec.decode_v(v.data(), B, row, out);
        EXPECT_EQ(out, expected);
      }
      for (size_t i = bytes; i < bytes + 16; ++i) {
        EXPECT_EQ(k[i], std::byte{0xff});
        EXPECT_EQ(v[i], std::byte{0xff});
      }
    }
  }
}

// Kernels rely on it: in each part of a tile the scales, then the bytes, transposed for K.
TEST(QuantizedCodec, TilesLieAsDocumented) {
  constexpr int kB = 16, kDim = 64, kRow = 5;
  for (const KvType type : kQuantizedTypes) {
    const int n = bits_of(type) * 4;
    std::vector<std::byte> k(static_cast<size_t>(kB * kv_row_bytes(type, kDim))), v = k;
    std::vector<std::byte> row(static_cast<size_t>(kv_row_bytes(type, kDim)));
    const std::vector<float> values = random_row(kDim, 3);
    codec_of(type).encode_k(k.data(), kB, kRow, values);
    codec_of(type).encode_v(v.data(), kB, kRow, values);
    codec_of(type).encode_v(row.data(), 1, 0, values);  // a tile of one row: blocks end to end
    for (int part = 0; part < kDim / 32; ++part) {
      const std::byte* block = row.data() + part * (2 + n);
      const int at = part * kB * (2 + n);
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(k[static_cast<size_t>(at + 2 * kRow + i)], block[i]);
        EXPECT_EQ(v[static_cast<size_t>(at + 2 * kRow + i)], block[i]);
      }
      for (int i = 0; i < n; ++i) {
        EXPECT_EQ(k[static_cast<size_t>(at + 2 * kB + i * kB + kRow)], block[2 + i]);
        EXPECT_EQ(v[static_cast<size_t>(at + 2 * kB + kRow * n + i)], block[2 + i]);
      }
    }
  }
}

// Integer of an element by the documented bits, for arbitrary bytes.
TEST(QuantizedCodec, AnyBytesAreSomeRow) {
  std::minstd_rand random(5);
  for (const KvType type : kQuantizedTypes) {
    const int bits = bits_of(type), n = bits * 4;
    for (int round = 0; round < 200; ++round) {
      std::vector<std::byte> block(
          static_cast<size_t>(2 + n));  // exactly: sanitizers see a step out
      for (std::byte& b : block) b = static_cast<std::byte>(random() >> 8);
      std::vector<float> out(32);
      codec_of(type).decode_v(block.data(), 1, 0, out);
      uint16_t half;
      std::memcpy(&half, block.data(), 2);
      const float scale = half_to_float(half);
      const auto byte = [&](int i) {
        return std::to_integer<int>(block[static_cast<size_t>(2 + i)]);
      };
      for (int i = 0; i < 32; ++i) {
        int q = 0;
        if (bits == 8) {
          q = static_cast<int8_t>(byte(i));
        } else {
          q = i < 16 ? byte(i) & 15 : byte(i - 16) >> 4;
          if (bits == 6) q += (byte(16 + i % 8) >> (2 * (i / 8)) & 3) * 16;
          if (bits == 5) q += (byte(16 + i % 4) >> (i / 4) & 1) * 16;
          q -= 1 << (bits - 1);
        }
        const float expected = scale * static_cast<float>(q);
        EXPECT_TRUE(out[static_cast<size_t>(i)] == expected ||
                    (std::isnan(expected) && std::isnan(out[static_cast<size_t>(i)])));
      }
    }
  }
}

TEST(QuantizedCodec, WhatIsNotFiniteMakesItsBlockNaNAndNoOther) {
  for (const KvType type : kQuantizedTypes) {
    const float top = type == KvType::q8_0 ? 127.0f : std::ldexp(1.0f, bits_of(type) - 1);
    for (const float bad : {NAN, INFINITY, -INFINITY, 66000.0f * top}) {
      std::vector<float> row = random_row(96, 1), out(96);
      row[40] = bad;
      std::vector<std::byte> tile(static_cast<size_t>(kv_row_bytes(type, 96)));
      codec_of(type).encode_v(tile.data(), 1, 0, row);
      codec_of(type).decode_v(tile.data(), 1, 0, out);
      for (size_t i = 0; i < 96; ++i) EXPECT_EQ(std::isnan(out[i]), i / 32 == 1) << i;
    }
    // The largest that is still stored, zeros, and what lies below every scale.
    for (const float value : {65504.0f * top, 0.0f, 1e-12f, 1e-40f}) {
      std::vector<float> row(32, value), out(32);
      std::vector<std::byte> tile(static_cast<size_t>(kv_row_bytes(type, 32)));
      codec_of(type).encode_v(tile.data(), 1, 0, row);
      codec_of(type).decode_v(tile.data(), 1, 0, out);
      for (const float x : out) EXPECT_NEAR(x, value < 1.0f ? 0.0f : value, value * 0x1p-11f);
    }
  }
}

// Normalized squared error of rows that were encoded and decoded, rotated around it or not.
double round_trip_error(KvType type, bool is_rotated, const std::vector<std::vector<float>>& rows) {
  double error = 0, power = 0;
  for (const std::vector<float>& row : rows) {
    std::vector<float> x = row;
    std::vector<std::byte> tile(static_cast<size_t>(kv_row_bytes(type, std::ssize(row))));
    if (is_rotated) hadamard(std::span<float>(x));
    codec_of(type).encode_v(tile.data(), 1, 0, x);
    codec_of(type).decode_v(tile.data(), 1, 0, x);
    if (is_rotated) hadamard(std::span<float>(x));
    for (size_t i = 0; i < x.size(); ++i) {
      error += std::pow(double{x[i]} - row[i], 2);
      power += std::pow(double{row[i]}, 2);
    }
  }
  return error / power;
}

// Trained keys have channels far larger than the rest, always the same ones: here 4 of 128, eight
// times the others. There rotating helps every type; where no channel stands out it costs nothing.
// docs/codecs.md has the table.
TEST(QuantizedCodec, RotationHelpsWhereChannelsStandOut) {
  constexpr int kDim = 128;
  std::vector<std::vector<float>> even, uneven;
  for (uint32_t i = 0; i < 500; ++i) {
    even.push_back(random_row(kDim, i));
    uneven.push_back(even.back());
    for (const size_t channel : {size_t{5}, size_t{40}, size_t{77}, size_t{101}}) {
      uneven.back()[channel] *= 8;
    }
  }
  double last = 0;
  for (const KvType type : kQuantizedTypes) {
    const double e = round_trip_error(type, false, even), er = round_trip_error(type, true, even);
    const double u = round_trip_error(type, false, uneven);
    const double ur = round_trip_error(type, true, uneven);
    std::printf("%s: even %.3g, rotated %.3g; outliers %.3g, rotated %.3g\n", kv_type_name(type), e,
                er, u, ur);
    EXPECT_NEAR(er / e, 1.0, 0.05);
    EXPECT_LT(ur, 0.8 * u);
    // One bit less is four times the error; q8_0 to q6_0, two bits.
    if (last > 0) {
      EXPECT_NEAR(e / last, type == KvType::q6_0 ? 16 : 4, type == KvType::q6_0 ? 3 : 0.7);
    }
    last = e;
  }
}

KvGroup two_layers(KvType k_type, KvType v_type, int B) {
  KvGeometry geometry;
  for (int i = 0; i < 2; ++i) {
    geometry.layers.push_back({.index = i,
                               .retention = {},
                               .n_heads = 4,
                               .n_kv_heads = 2,
                               .k_dim = 32 * (i + 1),
                               .v_dim = 32,
                               .storage = KvStorage::separate,
                               .source = i});
  }
  KvFormat format{.global_k = k_type, .global_v = v_type, .block_tokens = B};
  return make_layout(geometry, format)->groups[0];
}

// Moves every position by adding it to the keys.
struct AddRotator final : KeyRotator {
  void rotate(int layer, int64_t from, int64_t to, std::span<float> row) const override {
    EXPECT_EQ(row.size(), static_cast<size_t>(32 * (layer + 1)));
    for (float& x : row) x += static_cast<float>(to - from);
  }
};

TEST(BlockRows, CopyAndRotateReachEveryLayerAndHeadAndNothingElse) {
  constexpr int kB = 16;
  for (const KvType k_type : kFloatTypes) {
    for (const KvType v_type : kFloatTypes) {
      const KvGroup group = two_layers(k_type, v_type, kB);
      const Codec& k_codec = codec_of(k_type);
      const Codec& v_codec = codec_of(v_type);
      const size_t bytes = static_cast<size_t>(group.block_bytes.v);
      std::vector<std::byte> from(bytes), to(bytes, std::byte{0});
      const auto value = [](int layer, int head, int row) {
        return static_cast<float>(layer * 32 + head * 16 + row);
      };
      for (int row = 0; row < kB; ++row) {
        for (const GroupLayer& l : group.layers) {
          for (int h = 0; h < l.n_kv_heads; ++h) {
            k_codec.encode_k(from.data() + l.k_offset + h * l.k_tile_bytes, kB, row,
                             ramp(l.k_dim, value(l.layer, h, row)));
            v_codec.encode_v(from.data() + l.v_offset + h * l.v_tile_bytes, kB, row,
                             ramp(l.v_dim, -value(l.layer, h, row)));
          }
        }
      }
      copy_row(group, from.data(), 3, to.data(), 15);
      rotate_row(group, to.data(), 15, 10, 12, AddRotator());
      for (const GroupLayer& l : group.layers) {
        for (int h = 0; h < l.n_kv_heads; ++h) {
          std::vector<float> k(static_cast<size_t>(l.k_dim)), v(static_cast<size_t>(l.v_dim));
          for (int row = 0; row < kB; ++row) {
            k_codec.decode_k(to.data() + l.k_offset + h * l.k_tile_bytes, kB, row, k);
            v_codec.decode_v(to.data() + l.v_offset + h * l.v_tile_bytes, kB, row, v);
            if (row == 15) {
              EXPECT_EQ(k, ramp(l.k_dim, value(l.layer, h, 3) + 2.0f));
              EXPECT_EQ(v, ramp(l.v_dim, -value(l.layer, h, 3)));
            } else {
              EXPECT_EQ(k, std::vector<float>(k.size(), 0.0f));
              EXPECT_EQ(v, std::vector<float>(v.size(), 0.0f));
            }
          }
        }
      }
    }
  }
}

// Copying moves bits; rotating decodes, turns and encodes, and touches the keys of that row only.
TEST(BlockRows, QuantizedRowsAreCopiedByBitsAndRotatedByValue) {
  constexpr int kB = 16;
  for (const KvType type : kQuantizedTypes) {
    KvGroup group = two_layers(type, type, kB);
    group.k_rotated = false;
    const size_t bytes = static_cast<size_t>(group.block_bytes.v);
    std::vector<std::byte> from(bytes), to(bytes, std::byte{0});
    std::minstd_rand random(9);
    for (std::byte& b : from) b = static_cast<std::byte>(random() >> 8);  // NaN scales among them
    copy_row(group, from.data(), 3, to.data(), 15);
    std::vector<std::byte> again(bytes, std::byte{0});
    copy_row(group, to.data(), 15, again.data(), 3);
    copy_row(group, from.data(), 15, from.data(), 3);
    copy_row(group, to.data(), 15, from.data(), 15);
    copy_row(group, from.data(), 15, again.data(), 3);
    std::vector<std::byte> expected(bytes, std::byte{0});
    copy_row(group, again.data(), 3, expected.data(), 15);
    EXPECT_EQ(to, expected);

    const Codec& codec = codec_of(type);
    for (const GroupLayer& l : group.layers) {
      for (int h = 0; h < l.n_kv_heads; ++h) {
        codec.encode_k(to.data() + l.k_offset + h * l.k_tile_bytes, kB, 15, random_row(l.k_dim, 7));
      }
    }
    const std::vector<std::byte> before = to;
    rotate_row(group, to.data(), 15, 10, 12, AddRotator());
    for (const GroupLayer& l : group.layers) {
      for (int h = 0; h < l.n_kv_heads; ++h) {
        std::byte* tile = to.data() + l.k_offset + h * l.k_tile_bytes;
        std::vector<float> was(static_cast<size_t>(l.k_dim)), is = was;
        codec.decode_k(before.data() + l.k_offset + h * l.k_tile_bytes, kB, 15, was);
        codec.decode_k(tile, kB, 15, is);
        std::vector<std::byte> one(static_cast<size_t>(kv_row_bytes(type, l.k_dim)));
        for (float& x : was) x += 2.0f;
        codec.encode_v(one.data(), 1, 0, was);
        codec.decode_v(one.data(), 1, 0, was);
        EXPECT_EQ(is, was);
        codec.copy_k(before.data() + l.k_offset + h * l.k_tile_bytes, 15, tile, 15, kB, l.k_dim);
      }
    }
    EXPECT_EQ(to, before);  // nothing but the keys of row 15 had changed
  }
}

// Rope turns the key itself, not its Hadamard rotation.
TEST(BlockRows, RotatedKeysAreTurnedBackBeforeTheyMove) {
  constexpr int kB = 16;
  KvGroup group = two_layers(KvType::f32, KvType::f32, kB);
  group.k_rotated = true;
  std::vector<std::byte> block(static_cast<size_t>(group.block_bytes.v));
  const Codec& codec = codec_of(KvType::f32);
  for (const GroupLayer& l : group.layers) {
    for (int h = 0; h < l.n_kv_heads; ++h) {
      std::vector<float> key = random_row(l.k_dim, static_cast<uint32_t>(h));
      hadamard(std::span<float>(key));
      codec.encode_k(block.data() + l.k_offset + h * l.k_tile_bytes, kB, 5, key);
    }
  }
  rotate_row(group, block.data(), 5, 10, 13, AddRotator());
  for (const GroupLayer& l : group.layers) {
    for (int h = 0; h < l.n_kv_heads; ++h) {
      std::vector<float> key(static_cast<size_t>(l.k_dim));
      codec.decode_k(block.data() + l.k_offset + h * l.k_tile_bytes, kB, 5, key);
      hadamard(std::span<float>(key));
      const std::vector<float> was = random_row(l.k_dim, static_cast<uint32_t>(h));
      for (size_t i = 0; i < key.size(); ++i) EXPECT_NEAR(key[i], was[i] + 3.0f, 1e-5);
    }
  }
}

}  // namespace
}  // namespace weir

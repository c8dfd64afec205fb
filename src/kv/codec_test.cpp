#include "kv/codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/half.h"
#include "kv/block_rows.h"
#include "kv/testing/small_store.h"

namespace weir {
namespace {

constexpr KvType kFloatTypes[] = {KvType::f32, KvType::f16, KvType::bf16};

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

TEST(Codec, TypesWithoutACodecAreRefusedByName) {
  for (const KvType type : kFloatTypes) EXPECT_TRUE(check_codec(type).ok());
  for (const KvType type : {KvType::q8_0, KvType::q6_0, KvType::q5_0, KvType::q4_0}) {
    const Status status = check_codec(type);
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_NE(status.message().find(kv_type_name(type)), std::string::npos);
  }
}

KvGroup two_layers(KvType k_type, KvType v_type, int B) {
  KvGeometry geometry;
  for (int i = 0; i < 2; ++i) {
    geometry.layers.push_back({.index = i,
                               .retention = {},
                               .n_heads = 4,
                               .n_kv_heads = 2,
                               .k_dim = 8 * (i + 1),
                               .v_dim = 16,
                               .storage = KvStorage::separate,
                               .source = i});
  }
  KvFormat format{.global_k = k_type, .global_v = v_type, .block_tokens = B};
  return make_layout(geometry, format)->groups[0];
}

// Moves every position by adding it to the keys.
struct AddRotator final : KeyRotator {
  void rotate(int layer, int64_t from, int64_t to, std::span<float> row) const override {
    EXPECT_EQ(row.size(), static_cast<size_t>(8 * (layer + 1)));
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

}  // namespace
}  // namespace weir

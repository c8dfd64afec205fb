#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "attention/simd_targets.h"
#include "attention/testing_case.h"

namespace weir {
namespace {

using testing::Case;
using testing::Storage;

TEST(Store, WritesWhatTheCodecWritesAndNothingElse) {
  const auto reference = make_reference_device();
  for (size_t i = 0; i < std::size(testing::kAllTypes); ++i) {
    const KvType k = testing::kAllTypes[i];
    for (const KvType v : {k, testing::kAllTypes[(i + 3) % std::size(testing::kAllTypes)]}) {
      for (const int B : {16, 32, 64}) {
        if (k != v && B != 32) continue;
        for (const auto& [k_dim, v_dim] :
             {std::pair{64, 16}, {13, 70}, {1, 1}, {80, 256}, {96, 32}}) {
          if (k_dim % kv_type_block(k) != 0 || v_dim % kv_type_block(v) != 0) continue;
          Case c;
          c.shape = {.n_heads = 2,
                     .n_kv_heads = 2,
                     .k_dim = k_dim,
                     .v_dim = v_dim,
                     .k_type = k,
                     .v_type = v,
                     .block_tokens = B,
                     .k_rotated = B != 16,
                     .v_rotated = B == 32};
          if (k == v && k_dim == 64) {
            c.shape.v_dim = 64;
            c.shape.k_rotating = 32;  // stored once
          }
          c.rows = {{0, 0, 1}, {1, 15, 2}, {2, 63, 70}, {3, 64, 64}, {4, 5, 3}};
          Storage expected(c);
          testing::store_new(c, expected, {.device = reference.get()});
          for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
            hwy::SetSupportedTargetsForTest(target);
            for (const int threads : {1, 2, 7}) {
              Storage stored(c);
              testing::store_new(c, stored, {.threads = threads});
              EXPECT_TRUE(stored.memory() == expected.memory())
                  << c << " " << hwy::TargetName(target) << " on " << threads;
            }
          }
          hwy::SetSupportedTargetsForTest(0);
        }
      }
    }
  }
}

// Every exponent, ties in both directions, subnormals, overflow, zeros and infinities.
TEST(Store, RoundsToNearestEven) {
  std::vector<float> hard = {0.0f,     -0.0f,    65504.0f,     65519.99f,    65520.0f,  65536.0f,
                             1e30f,    INFINITY, -INFINITY,    0x1p-24f,     0x1p-25f,  0x1.8p-25f,
                             0x1p-26f, 0x1p-14f, 0x1.ffcp-15f, 0x1.ffep-15f, 0x1p-126f, 0x1p-149f};
  for (int e = -30; e <= 17; ++e) {
    for (const uint32_t fraction : {0u, 0x1000u, 0x1001u, 0x0fffu, 0x3000u, 0x2fffu, 0x8000u,
                                    0x18000u, 0x7fffu, 0x7fffffu, 0x7fe000u, 0x7ff000u}) {
      const float x = std::ldexp(std::bit_cast<float>(0x3f800000u | fraction), e);
      hard.push_back(x);
      hard.push_back(-x);
    }
  }
  const int dim = static_cast<int>(hard.size());
  for (const KvType type : {KvType::f16, KvType::bf16}) {
    const HeadShape shape{.n_heads = 1,
                          .n_kv_heads = 1,
                          .k_dim = dim,
                          .v_dim = dim,
                          .k_type = type,
                          .v_type = type,
                          .block_tokens = 16};
    const size_t bytes = static_cast<size_t>(k_tile_bytes(shape));
    std::vector<std::byte> expected(bytes), k(bytes), v(bytes);
    const std::vector<TilePair> blocks = {{k.data(), v.data()}};
    const SequenceRows rows{.blocks = blocks, .n_new = 1};
    codec_of(type).encode_k(expected.data(), 16, 0, hard);
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      const TokenMatrix in{hard.data(), dim, dim};
      simd_store({shape, {&rows, 1}, in, in}, 0, 1);
      EXPECT_EQ(k, expected) << hwy::TargetName(target);
    }
    hwy::SetSupportedTargetsForTest(0);
  }
}

}  // namespace
}  // namespace weir

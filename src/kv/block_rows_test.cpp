#include "kv/block_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "kv/codec.h"

namespace weir {
namespace {

constexpr int kDim = 16, kRotating = 8, kB = 16;

// Doubles what would rotate, so that nothing is rounded.
struct Doubler : KeyRotator {
  void rotate(int, int64_t, int64_t, std::span<float> row) const override {
    for (float& x : row) x *= 2;
  }
};

// One global layer whose K and V come from one projection.
KvGroup shared_group() {
  KvLayer layer;
  layer.n_heads = layer.n_kv_heads = 2;
  layer.k_dim = layer.v_dim = kDim;
  layer.storage = KvStorage::shared;
  layer.k_rotating = kRotating;
  KvGeometry geometry;
  geometry.layers = {layer};
  return make_layout(geometry, KvFormat::uniform(KvType::f16, kB))->groups[0];
}

struct Row {
  std::vector<float> k = std::vector<float>(kRotating), v = std::vector<float>(kDim);
  bool operator==(const Row&) const = default;
};

Row read(const KvGroup& group, const std::vector<std::byte>& block, int row, int head) {
  Row out;
  const GroupLayer& l = group.layers[0];
  const Codec& codec = codec_of(KvType::f16);
  codec.decode_k(block.data() + l.k_offset + head * l.k_tile_bytes, kB, row, out.k);
  codec.decode_v(block.data() + l.v_offset + head * l.v_tile_bytes, kB, row, out.v);
  return out;
}

TEST(BlockRows, RowsStoredOnceAreCopiedAndOnlyTheirRotatingPartIsRotated) {
  const KvGroup group = shared_group();
  EXPECT_EQ(group.block_bytes.v, 2 * kB * (kRotating + kDim) * 2);
  std::vector<std::byte> a(static_cast<size_t>(group.block_bytes.v)), b = a;
  const GroupLayer& l = group.layers[0];
  const Codec& codec = codec_of(KvType::f16);
  std::vector<std::vector<Row>> written(2);
  for (int head = 0; head < 2; ++head) {
    for (int row = 0; row < kB; ++row) {
      Row r;
      for (int i = 0; i < kRotating; ++i) r.k[i] = static_cast<float>(100 * head + row + i) / 8;
      for (int i = 0; i < kDim; ++i) r.v[i] = static_cast<float>(-100 * head - row - i) / 4;
      codec.encode_k(a.data() + l.k_offset + head * l.k_tile_bytes, kB, row, r.k);
      codec.encode_v(a.data() + l.v_offset + head * l.v_tile_bytes, kB, row, r.v);
      written[static_cast<size_t>(head)].push_back(r);
    }
  }
  copy_row(group, a.data(), 3, b.data(), 11);
  rotate_row(group, a.data(), 5, 0, 1, Doubler());
  for (int head = 0; head < 2; ++head) {
    const std::vector<Row>& w = written[static_cast<size_t>(head)];
    EXPECT_EQ(read(group, b, 11, head), w[3]);
    EXPECT_EQ(read(group, b, 10, head), Row());
    for (int row = 0; row < kB; ++row) {
      Row expected = w[static_cast<size_t>(row)];
      for (float& x : expected.k) x *= row == 5 ? 2.0f : 1.0f;
      EXPECT_EQ(read(group, a, row, head), expected) << row;
    }
  }
}

}  // namespace
}  // namespace weir

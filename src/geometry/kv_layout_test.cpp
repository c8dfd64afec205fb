#include "geometry/kv_layout.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

KvGeometry global_and_local(int global_dim, int local_dim) {
  KvGeometry geometry;
  for (int i = 0; i < 2; ++i) {
    const int dim = i == 0 ? local_dim : global_dim;
    geometry.layers.push_back(
        {.index = i,
         .retention = i == 0 ? Retention{LayerKind::sliding, 64} : Retention{},
         .n_heads = 2,
         .n_kv_heads = 2,
         .k_dim = dim,
         .v_dim = dim,
         .storage = KvStorage::separate,
         .source = i});
  }
  return geometry;
}

TEST(KvLayout, GlobalAndLocalLayersHaveTypesOfTheirOwn) {
  KvFormat format = KvFormat::uniform(KvType::f16);
  format.global_k = KvType::q8_0;
  format.global_v = KvType::q4_0;
  format.local_v = KvType::q6_0;
  const KvLayout layout = *make_layout(global_and_local(64, 32), format);
  ASSERT_EQ(layout.groups.size(), 2u);
  EXPECT_EQ(layout.groups[0].layers[0].k_tile_bytes, 32 * 2 * 34);
  EXPECT_EQ(layout.groups[0].layers[0].v_tile_bytes, 32 * 2 * 18);
  EXPECT_EQ(layout.groups[1].layers[0].k_tile_bytes, 32 * 32 * 2);
  EXPECT_EQ(layout.groups[1].layers[0].v_tile_bytes, 32 * 26);
}

TEST(KvLayout, RotatesTypesBelowEightBitsUnlessTold) {
  const KvGeometry geometry = global_and_local(64, 64);
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0, KvType::q6_0,
                            KvType::q5_0, KvType::q4_0}) {
    const bool is_small = type == KvType::q6_0 || type == KvType::q5_0 || type == KvType::q4_0;
    for (const auto& [rotation, expected] : {std::pair{KvRotation::automatic, is_small},
                                             {KvRotation::on, true},
                                             {KvRotation::off, false}}) {
      KvFormat format = KvFormat::uniform(KvType::f16);
      format.global_k = format.local_v = type;
      format.rotation = rotation;
      const KvLayout layout = *make_layout(geometry, format);
      EXPECT_EQ(layout.groups[0].k_rotated, expected);
      EXPECT_EQ(layout.groups[0].v_rotated, rotation == KvRotation::on);
      EXPECT_EQ(layout.groups[1].k_rotated, rotation == KvRotation::on);
      EXPECT_EQ(layout.groups[1].v_rotated, expected);
    }
  }
}

TEST(KvLayout, RefusesRowsThatAreNoMultipleOfABlock) {
  for (const KvType type : {KvType::q8_0, KvType::q6_0, KvType::q5_0, KvType::q4_0}) {
    KvFormat format = KvFormat::uniform(KvType::f16);
    format.local_v = type;
    EXPECT_TRUE(make_layout(global_and_local(80, 96), format).ok());
    const Status status = make_layout(global_and_local(64, 80), format).status();
    EXPECT_EQ(status.code(), Code::invalid_input);
    EXPECT_EQ(status.message(),
              std::string("KV type ") + kv_type_name(type) +
                  " cannot store the V rows of local layers: 80 elements are not a multiple of 32; "
                  "use f16, bf16 or f32 for them");
  }
}

TEST(KvFormat, IsNamedByItsTypes) {
  KvFormat format = KvFormat::uniform(KvType::q8_0);
  EXPECT_EQ(format.type_name(), "q8_0");
  format.local_v = format.global_v = KvType::f16;
  EXPECT_EQ(format.type_name(), "k q8_0, v f16");
  format.local_k = KvType::f16;
  EXPECT_EQ(format.type_name(), "global k q8_0, v f16; local f16");
}

TEST(KvRotation, NamesComeBack) {
  for (const KvRotation rotation : {KvRotation::automatic, KvRotation::on, KvRotation::off}) {
    EXPECT_EQ(*parse_kv_rotation(kv_rotation_name(rotation)), rotation);
  }
  EXPECT_EQ(parse_kv_rotation("").status().code(), Code::invalid_input);
  EXPECT_EQ(parse_kv_rotation("yes").status().code(), Code::invalid_input);
}

}  // namespace
}  // namespace weir

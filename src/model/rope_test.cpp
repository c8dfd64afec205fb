#include "model/rope.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"
#include "model/model.h"

namespace weir {
namespace {

// ggml's rotation of `row` to `position`.
std::vector<float> ggml_rotated(const RopeLayer& rope, std::vector<float> row, int32_t position) {
  std::vector<std::byte> memory(1 << 20);
  ggml_context* ctx = ggml_init({memory.size(), memory.data(), false});
  ggml_tensor* x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, static_cast<int64_t>(row.size()), 1, 1);
  ggml_tensor* p = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1);
  std::copy(row.begin(), row.end(), static_cast<float*>(x->data));
  *static_cast<int32_t*>(p->data) = position;
  ggml_tensor* y = ggml_rope_ext(ctx, x, p, nullptr, rope.n_rot,
                                 rope.neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL, 0,
                                 rope.theta, rope.scale, 0.0f, 1.0f, 32.0f, 1.0f);
  ggml_cgraph* graph = ggml_new_graph(ctx);
  ggml_build_forward_expand(graph, y);
  ggml_graph_compute_with_ctx(ctx, graph, 1);
  const float* out = static_cast<const float*>(y->data);
  row.assign(out, out + row.size());
  ggml_free(ctx);
  return row;
}

TEST(Rope, MovesAKeyToWhereGgmlWouldHavePutIt) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const RopeLayer& rope :
       {RopeLayer{64, true, 1e4f, 1.0f}, RopeLayer{64, true, 1e6f, 0.125f},
        RopeLayer{32, true, 1e4f, 1.0f}, RopeLayer{64, false, 1e4f, 1.0f}, RopeLayer{}}) {
    std::vector<float> row(64);
    for (float& x : row) x = normal(random);
    if (rope.n_rot == 0) {
      std::vector<float> same = row;
      rope.rotate(5, 900, same);
      EXPECT_EQ(same, row);
      continue;
    }
    for (const auto& [from, to] : {std::pair{0, 7}, std::pair{130, 2}, std::pair{1000, 1731}}) {
      std::vector<float> moved = ggml_rotated(rope, row, from);
      rope.rotate(from, to, moved);
      const std::vector<float> there = ggml_rotated(rope, row, to);
      // ggml steps through the angles in f32: at position 1731 they are off by up to 1e-4.
      for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(moved[i], there[i], 2e-3f) << i;
    }
  }
}

TEST(Rope, AModelsRotatorKnowsItsLayers) {
  Result<std::unique_ptr<Model>> model =
      Model::load(std::string(WEIR_SOURCE_DIR) + "/models/weir-tiny/weir-tiny-f16.gguf", {});
  ASSERT_TRUE(model.ok());
  std::vector<float> local(64, 1.0f), global(64, 1.0f), expected(64, 1.0f);
  (*model)->key_rotator().rotate(0, 3, 10, local);
  (*model)->key_rotator().rotate(5, 3, 10, global);
  EXPECT_NE(local, global);
  RopeLayer{64, true, 1e4f, 1.0f}.rotate(3, 10, expected);
  EXPECT_EQ(local, expected);
  std::fill(expected.begin(), expected.end(), 1.0f);
  RopeLayer{64, true, 1e6f, 1.0f}.rotate(3, 10, expected);
  EXPECT_EQ(global, expected);
}

}  // namespace
}  // namespace weir

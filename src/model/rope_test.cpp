#include "model/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"
#include "model/model.h"

namespace weir {
namespace {

// `row` as the graph's op puts it at `position`.
std::vector<float> ggml_rotated(const RopeLayer& rope, std::vector<float> row, int32_t position) {
  std::vector<std::byte> memory(1 << 20);
  ggml_context* ctx = ggml_init({memory.size(), memory.data(), false});
  ggml_tensor* x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, static_cast<int64_t>(row.size()), 1, 1);
  ggml_tensor* p = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1);
  std::copy(row.begin(), row.end(), static_cast<float*>(x->data));
  *static_cast<int32_t*>(p->data) = position;
  ggml_tensor* y = rotated(ctx, x, p, rope);
  ggml_cgraph* graph = ggml_new_graph(ctx);
  ggml_build_forward_expand(graph, y);
  ggml_graph_compute_with_ctx(ctx, graph, 1);
  const float* out = static_cast<const float*>(y->data);
  row.assign(out, out + row.size());
  ggml_free(ctx);
  return row;
}

std::vector<float> gaussian_row(size_t n) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> row(n);
  for (float& x : row) x = normal(random);
  return row;
}

// Divisors as an f32 tensor that holds its data.
class Divisors {
 public:
  explicit Divisors(const std::vector<float>& values)
      : memory_(4096), ctx_(ggml_init({memory_.size(), memory_.data(), false})) {
    tensor_ = ggml_new_tensor_1d(ctx_, GGML_TYPE_F32, static_cast<int64_t>(values.size()));
    std::copy(values.begin(), values.end(), static_cast<float*>(tensor_->data));
  }
  ~Divisors() { ggml_free(ctx_); }
  const ggml_tensor* tensor() const { return tensor_; }

 private:
  std::vector<std::byte> memory_;
  ggml_context* ctx_;
  ggml_tensor* tensor_;
};

// One of every kind: both pairings, partial rotation, linear scaling, YaRN whose ramp lies inside
// the pairs or starts before the first, divisors, magnitudes.
std::vector<RopeLayer> kinds(const Divisors& divisors) {
  const RopeLayer::Yarn yarn{4096, 32.0f, 1.0f}, early{64, 32.0f, 1.0f};
  std::vector<RopeLayer> layers;
  for (const bool neox : {true, false}) {
    layers.push_back({64, neox, 1e4f, 1.0f});
    layers.push_back({64, neox, 1e6f, 0.125f});
    layers.push_back({32, neox, 1e4f, 1.0f});
    layers.push_back({64, neox, 1.5e5f, 1.0f / 32, yarn, 1.3466f});
    layers.push_back({48, neox, 1e4f, 1.0f / 8, early, 1.0f});
    layers.push_back({64, neox, 5e5f, 1.0f, std::nullopt, 1.0f, divisors.tensor()});
    layers.push_back({64, neox, 1e4f, 0.25f, yarn, 1.19f, divisors.tensor()});
  }
  return layers;
}

std::vector<float> made_up_divisors() {
  std::vector<float> divisors(32);
  for (size_t i = 0; i < divisors.size(); ++i) divisors[i] = 1 + 0.25f * static_cast<float>(i);
  divisors[31] = 1e30f;
  return divisors;
}

TEST(Rope, MovesAKeyToWhereGgmlWouldHavePutIt) {
  const Divisors divisors(made_up_divisors());
  const std::vector<float> row = gaussian_row(64);
  for (const RopeLayer& rope : kinds(divisors)) {
    SCOPED_TRACE(testing::Message() << "n_rot " << rope.n_rot << " neox " << rope.neox << " theta "
                                    << rope.theta << " scale " << rope.scale);
    for (const auto& [from, to] : {std::pair{0, 7}, std::pair{130, 2}, std::pair{1000, 1731}}) {
      std::vector<float> moved = ggml_rotated(rope, row, from);
      rope.rotate(from, to, moved);
      const std::vector<float> there = ggml_rotated(rope, row, to);
      // ggml steps through the angles in f32: at position 1731 they are off by up to 1e-4.
      for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(moved[i], there[i], 2e-3f) << i;
    }
  }
  std::vector<float> same = row;
  RopeLayer{}.rotate(5, 900, same);
  EXPECT_EQ(same, row);
}

// From position 0 the magnitude is all that ggml's rotation adds.
TEST(Rope, MagnitudeIsThatOfTheRotatedElements) {
  const Divisors divisors(made_up_divisors());
  const std::vector<float> row = gaussian_row(64);
  for (const RopeLayer& rope : kinds(divisors)) {
    const std::vector<float> rotated = ggml_rotated(rope, row, 0);
    for (int i = 0; i < 64; ++i) {
      const float factor = i < rope.n_rot ? rope.magnitude : 1.0f;
      EXPECT_NEAR(rotated[static_cast<size_t>(i)], row[static_cast<size_t>(i)] * factor, 1e-5f)
          << i;
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

// gpt-oss: the formula of the vendor's code, written out.
TEST(Rope, UnroundedYarnIsTheFormula) {
  RopeLayer rope;
  rope.n_rot = 64;
  rope.theta = 150000;
  rope.scale = 1 / 32.0f;
  rope.magnitude = 1.3466f;
  rope.yarn = RopeLayer::Yarn{.original_context = 4096};
  const RopeDivisors divisors(unrounded_yarn_divisors(rope));
  RopeLayer unrounded = rope;
  unrounded.yarn.reset();
  unrounded.scale = 1;
  unrounded.divisors = divisors.tensor();

  constexpr double kFirst = 8.092779115512402, kLast = 17.39802450158856;
  double largest = 0;
  for (int p = 0; p < 32; ++p) {
    const double plain = std::pow(150000.0, -p / 32.0);
    const double scaled = std::clamp((p - kFirst) / (kLast - kFirst), 0.0, 1.0);
    const double expected = plain / 32 * scaled + plain * (1 - scaled);
    EXPECT_NEAR(unrounded.turn(p) / expected, 1, 1e-6) << p;
    largest = std::max(largest, std::abs(rope.turn(p) / expected - 1));
  }
  // Rounded ends let one pair turn by three quarters more.
  EXPECT_GT(largest, 0.7);
  EXPECT_LT(largest, 0.8);

  const std::vector<float> row = gaussian_row(64);
  for (const int32_t position : {0, 1, 37, 1000}) {
    const std::vector<float> actual = ggml_rotated(unrounded, row, position);
    for (size_t p = 0; p < 32; ++p) {
      const double angle = position * unrounded.turn(static_cast<int>(p));
      const double x = 1.3466 * (row[p] * std::cos(angle) - row[p + 32] * std::sin(angle));
      const double y = 1.3466 * (row[p] * std::sin(angle) + row[p + 32] * std::cos(angle));
      // ggml's angles are f32: off by up to 6e-5 at position 1000.
      EXPECT_NEAR(actual[p], x, 5e-4);
      EXPECT_NEAR(actual[p + 32], y, 5e-4);
    }
  }
}

}  // namespace
}  // namespace weir

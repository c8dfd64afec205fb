#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "ggml.h"

namespace weir {

double RopeLayer::turn(int pair) const {
  double turn = std::pow(theta, -2.0 * pair / n_rot);
  if (divisors) turn /= static_cast<const float*>(divisors->data)[pair];
  if (!yarn) return turn * scale;
  float ends[2];
  ggml_rope_yarn_corr_dims(n_rot, yarn->original_context, theta, yarn->beta_fast, yarn->beta_slow,
                           ends);
  // ggml's shortest ramp.
  const double length = std::max(0.001f, ends[1] - ends[0]);
  const double scaled = std::clamp((pair - ends[0]) / length, 0.0, 1.0);
  return turn * (scaled * scale + (1 - scaled));
}

void RopeLayer::rotate(double from, double to, std::span<float> row) const {
  WEIR_CHECK(n_rot >= 0 && n_rot % 2 == 0 && static_cast<size_t>(n_rot) <= row.size());
  const int half = n_rot / 2;
  for (int p = 0; p < half; ++p) {
    // Rotations of a plane add up: turning by the difference is enough.
    const double angle = (to - from) * turn(p);
    const double c = std::cos(angle), s = std::sin(angle);
    float& x = row[static_cast<size_t>(neox ? p : 2 * p)];
    float& y = row[static_cast<size_t>(neox ? p + half : 2 * p + 1)];
    const double x0 = x, y0 = y;
    x = static_cast<float>(x0 * c - y0 * s);
    y = static_cast<float>(x0 * s + y0 * c);
  }
}

void RopeDivisors::ContextFree::operator()(ggml_context* context) const { ggml_free(context); }

RopeDivisors::RopeDivisors(std::span<const float> numbers)
    : context_(ggml_init(
          {ggml_tensor_overhead() + numbers.size_bytes() + GGML_MEM_ALIGN, nullptr, false})) {
  WEIR_CHECK(context_);
  tensor_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, static_cast<int64_t>(numbers.size()));
  std::copy(numbers.begin(), numbers.end(), static_cast<float*>(tensor_->data));
}

std::vector<float> unrounded_yarn_divisors(const RopeLayer& rope) {
  WEIR_CHECK(rope.yarn && !rope.divisors);
  // The pair, a fraction, that turns `times` within the original context.
  const auto pair_of = [&](double times) {
    const double context = rope.yarn->original_context;
    const double pair = rope.n_rot * std::log(context / (times * 2 * std::numbers::pi)) /
                        (2 * std::log(static_cast<double>(rope.theta)));
    return std::clamp(pair, 0.0, rope.n_rot - 1.0);
  };
  const double first = pair_of(rope.yarn->beta_fast), last = pair_of(rope.yarn->beta_slow);
  const double length = std::max(0.001, last - first);
  std::vector<float> divisors;
  for (int p = 0; p < rope.n_rot / 2; ++p) {
    const double scaled = std::clamp((p - first) / length, 0.0, 1.0);
    divisors.push_back(static_cast<float>(1 / (scaled * rope.scale + (1 - scaled))));
  }
  return divisors;
}

ggml_tensor* rotated(ggml_context* ctx, ggml_tensor* heads, ggml_tensor* positions,
                     const RopeLayer& layer) {
  if (layer.n_rot == 0) return heads;
  const RopeLayer::Yarn yarn = layer.yarn.value_or(RopeLayer::Yarn{});
  // With YaRN, ggml multiplies the magnitude it is given by a factor of its own.
  const float ggmls_own = layer.yarn ? 1.0f + 0.1f * std::log(1.0f / layer.scale) : 1.0f;
  return ggml_rope_ext(ctx, heads, positions, const_cast<ggml_tensor*>(layer.divisors), layer.n_rot,
                       layer.neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL,
                       yarn.original_context, layer.theta, layer.scale, layer.yarn ? 1.0f : 0.0f,
                       layer.magnitude / ggmls_own, yarn.beta_fast, yarn.beta_slow);
}

void RopeRotator::rotate(int layer, int64_t from, int64_t to, std::span<float> row) const {
  rope_of_(layer).rotate(static_cast<double>(from), static_cast<double>(to), row);
}

}  // namespace weir

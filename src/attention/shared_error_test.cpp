// What storing K and V of one projection once does to attention's error.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <random>

#include "attention/attend_work.h"
#include "attention/kv_device.h"
#include "attention/tile_memory.h"
#include "base/bytes.h"
#include "geometry/kv_type.h"

namespace weir {
namespace {

// A global layer of Gemma 4: heads of 512, of which the pairs (p, p + 256) with p < 64 rotate.
constexpr int kDim = 512, kRotating = 128, kHeads = 8, kTokens = 600, kQueries = 16;

// Rows of one KV head for all tokens: n normed to a mean square of 1, V = n, K = rope(g * n).
struct Heads {
  std::vector<float> g, k, v, q;
};

Heads random_heads(uint64_t seed, float sharpness) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Heads h;
  for (int d = 0; d < kDim; ++d)
    h.g.push_back(static_cast<float>(0.2 * std::exp(0.5 * normal(random))));
  for (int t = 0; t < kTokens; ++t) {
    std::vector<double> n(kDim);
    double square = 0;
    for (double& x : n) {
      x = normal(random);
      square += x * x;
    }
    for (double& x : n) x /= std::sqrt(square / kDim);
    std::vector<double> key(kDim);
    for (int d = 0; d < kDim; ++d) key[d] = n[d] * h.g[d];
    for (int p = 0; p < kRotating / 2; ++p) {
      const double angle = t * std::pow(1e6, -2.0 * p / kDim);
      const double x = key[p], y = key[p + kDim / 2];
      key[p] = x * std::cos(angle) - y * std::sin(angle);
      key[p + kDim / 2] = x * std::sin(angle) + y * std::cos(angle);
    }
    for (int d = 0; d < kDim; ++d) {
      h.k.push_back(static_cast<float>(key[d]));
      h.v.push_back(static_cast<float>(n[d]));
    }
  }
  for (int i = 0; i < kQueries * kHeads * kDim; ++i) {
    h.q.push_back(sharpness * static_cast<float>(normal(random)));
  }
  return h;
}

std::vector<float> attend(Heads h, KvType type, bool share) {
  const HeadShape shape{.n_heads = kHeads,
                        .n_kv_heads = 1,
                        .k_dim = kDim,
                        .v_dim = kDim,
                        .k_type = type,
                        .v_type = type,
                        .block_tokens = 32,
                        .k_rotated = is_rotated(type, KvRotation::automatic),
                        .v_rotated = is_rotated(type, KvRotation::automatic),
                        .k_rotating = share ? kRotating : 0};
  const auto device = make_cpu_device();
  const int64_t n_blocks = ceil_div(kTokens, 32), k = k_tile_bytes(shape), v = v_tile_bytes(shape);
  std::vector<std::byte> memory(static_cast<size_t>(n_blocks * (k + v)));
  std::vector<TilePair> blocks;
  for (int64_t b = 0; b < n_blocks; ++b) {
    blocks.push_back({memory.data() + b * (k + v), memory.data() + b * (k + v) + k});
  }
  const SequenceRows all{.blocks = blocks, .n_new = kTokens};
  device->store({shape, {&all, 1}, {h.k.data(), kDim, kDim}, {h.v.data(), kDim, kDim}}, 0, 1);

  const SequenceRows last{.blocks = blocks, .n_past = kTokens - kQueries, .n_new = kQueries};
  std::vector<float> out(h.q.size());
  AttendWork work;
  work.plan(shape, {&last, 1}, 1);
  std::vector<float> workspace(static_cast<size_t>(work.workspace_floats()));
  work.set_workspace(workspace.data());
  const AttentionParams params{.key_factors = h.g.data()};
  device->attend({shape,
                  params,
                  {&last, 1},
                  {h.q.data(), kHeads * kDim, kDim},
                  {out.data(), kHeads * kDim, kDim},
                  &work},
                 0, 1);
  return out;
}

double error(const std::vector<float>& a, const std::vector<float>& truth) {
  double square = 0, power = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double e = static_cast<double>(a[i]) - truth[i];
    square += e * e;
    power += static_cast<double>(truth[i]) * truth[i];
  }
  return std::sqrt(square / power);
}

// Of rows stored once and of rows stored apart, over random models.
struct Errors {
  double once = 0, apart = 0;              // means
  double log_ratio = 0, noise_of_log = 0;  // of one to the other, and its standard error
};

Errors errors_of(KvType type, float sharpness) {
  constexpr int kModels = 16;
  Errors e;
  double square = 0;
  for (uint64_t seed = 1; seed <= kModels; ++seed) {
    const Heads h = random_heads(seed, sharpness);
    const std::vector<float> truth = attend(h, KvType::f32, false);
    const double once = error(attend(h, type, true), truth);
    const double apart = error(attend(h, type, false), truth);
    e.once += once / kModels;
    e.apart += apart / kModels;
    e.log_ratio += std::log(once / apart) / kModels;
    square += std::log(once / apart) * std::log(once / apart) / kModels;
  }
  e.noise_of_log = std::sqrt((square - e.log_ratio * e.log_ratio) / (kModels - 1));
  std::printf("%s, queries x %.1f: stored once %.2e, apart %.2e, ratio %.3f +- %.3f\n",
              kv_type_name(type), static_cast<double>(sharpness), e.once, e.apart,
              std::exp(e.log_ratio), e.noise_of_log);
  return e;
}

TEST(SharedStorage, ItsErrorIsNoLargerThanThatOfSeparateHalves) {
  for (const float sharpness : {0.3f, 1.0f, 3.0f}) {
    const Heads h = random_heads(1, sharpness);
    EXPECT_LE(error(attend(h, KvType::f32, true), attend(h, KvType::f32, false)), 1e-5);
    for (const KvType type : {KvType::f16, KvType::q8_0, KvType::q4_0}) {
      const Errors e = errors_of(type, sharpness);
      // No larger, as far as so many random models can tell: three standard errors.
      EXPECT_LE(e.log_ratio, 3 * e.noise_of_log);
      EXPECT_LE(e.once, 1.05 * e.apart);
    }
  }
}

}  // namespace
}  // namespace weir

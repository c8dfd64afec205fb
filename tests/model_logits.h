// What whole-model tests share: a model read in steps, and the figures that compare its logits with
// another engine's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/evaluator.h"
#include "model/model.h"

namespace weir {

// weir's logits of every token, read in steps of `chunk`. Failures are test failures.
inline std::vector<float> weir_logits(const Model& model, const KvFormat& format, int n_threads,
                                      std::span<const int32_t> tokens, size_t chunk) {
  const std::unique_ptr<KvDevice> device = make_cpu_device();
  Result<std::unique_ptr<Evaluator>> evaluator =
      Evaluator::create(model, *device, format, {4 * kGiB}, n_threads);
  EXPECT_TRUE(evaluator.ok()) << evaluator.status().message();
  std::vector<float> all;
  const Status status = (*evaluator)
                            ->read(tokens, static_cast<int64_t>(chunk), true,
                                   [&](int64_t, std::span<const float> rows) {
                                     all.insert(all.end(), rows.begin(), rows.end());
                                   });
  EXPECT_TRUE(status.ok()) << status.message();
  return all;
}

inline std::vector<int32_t> random_tokens(size_t n, int64_t n_vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(n_vocab - 300)) + 300;
  if (!tokens.empty()) tokens[0] = 2;
  return tokens;
}

struct LogitsDifference {
  double nmse = 0;         // squared difference over the peer's variance, all rows together
  double worst_nmse = 0;   // of one row
  double noise = 0;        // six times the root mean square difference of a logit
  int argmax_differs = 0;  // rows
  double margin = 0;       // largest gap, in the peer's logits, between its choice and ours
};

inline LogitsDifference compare(std::span<const float> ours, std::span<const float> peers,
                                int64_t n_vocab) {
  EXPECT_EQ(ours.size(), peers.size());
  LogitsDifference d;
  const auto width = static_cast<size_t>(n_vocab);
  const size_t n_rows = std::min(ours.size(), peers.size()) / width;
  double all_error = 0, all_power = 0;
  for (size_t r = 0; r < n_rows; ++r) {
    const auto a = ours.subspan(r * width, width), b = peers.subspan(r * width, width);
    double mean = 0, error = 0, power = 0;
    for (float x : b) mean += x;
    mean /= static_cast<double>(width);
    size_t best_a = 0, best_b = 0;
    for (size_t i = 0; i < width; ++i) {
      const double e = static_cast<double>(a[i]) - b[i];
      error += e * e;
      power += (b[i] - mean) * (b[i] - mean);
      if (a[i] > a[best_a]) best_a = i;
      if (b[i] > b[best_b]) best_b = i;
    }
    const double nmse = std::isfinite(error) && power > 0 ? error / power : INFINITY;
    d.worst_nmse = std::max(d.worst_nmse, nmse);
    all_error += error;
    all_power += power;
    if (best_a != best_b) {
      ++d.argmax_differs;
      d.margin = std::max(d.margin, static_cast<double>(b[best_b]) - b[best_a]);
    }
  }
  d.noise = 6 * std::sqrt(all_error / static_cast<double>(n_rows * width));
  d.nmse = std::isfinite(all_error) && all_power > 0 ? all_error / all_power : INFINITY;
  return d;
}

}  // namespace weir

// What whole-model tests share: a model with a KV cache and an executor, fed in steps, and the
// figures that compare its logits with another engine's.
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

#include "kv/kv_cache.h"
#include "model/model.h"

namespace weir {

// One conversation of a model. Failures are test failures.
class ModelRun {
 public:
  ModelRun(const Model& model, const KvFormat& format, int n_threads,
           Bytes budget = {int64_t{1} << 32})
      : model_(model), budget_(budget), device_(make_cpu_device()) {
    Result<KvLayout> layout = make_layout(model.geometry(), format);
    EXPECT_TRUE(layout.ok()) << layout.status().message();
    layout_ = *layout;
    Result<std::unique_ptr<KvCache>> cache =
        KvCache::create(layout_, budget_, device_->memory(),
                        {.address_space = budget, .max_context = 65536, .extent = {}});
    EXPECT_TRUE(cache.ok()) << cache.status().message();
    cache_ = std::move(*cache);
    executor_ = std::make_unique<Executor>(model, *device_, n_threads);
    seq_ = cache_->create_sequence();
  }

  // One step; logits of `rows`, one after the other.
  std::vector<float> step(std::span<const int32_t> tokens, std::span<const int32_t> rows) {
    const StepItem item{seq_, static_cast<int64_t>(tokens.size())};
    Result<Step> step = cache_->plan_step(std::span(&item, 1));
    EXPECT_TRUE(step.ok()) << step.status().message();
    const std::vector<int64_t> positions = step->positions(0);
    std::vector<float> logits(rows.size() * static_cast<size_t>(model_.n_vocab()), NAN);
    const Status status = executor_->compute({tokens, positions, rows}, layout_, *step, logits);
    EXPECT_TRUE(status.ok()) << status.message();
    step->commit();
    return logits;
  }

  // `tokens` in steps of `chunk`, logits of every row.
  std::vector<float> run(std::span<const int32_t> tokens, size_t chunk) {
    std::vector<float> all;
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const auto part = tokens.subspan(at, std::min(chunk, tokens.size() - at));
      std::vector<int32_t> rows(part.size());
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
      const std::vector<float> logits = step(part, rows);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

  KvCache& cache() { return *cache_; }
  Executor& executor() { return *executor_; }
  const KvLayout& layout() const { return layout_; }
  SeqId seq() const { return seq_; }

 private:
  const Model& model_;
  Budget budget_;
  std::unique_ptr<KvDevice> device_;
  KvLayout layout_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Executor> executor_;
  SeqId seq_{};
};

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

#include "engine/evaluator.h"

#include <algorithm>
#include <numeric>

namespace weir {

Evaluator::Evaluator(const Model& model, KvDevice& device, Bytes budget, int n_threads)
    : model_(model), budget_(budget), executor_(model, device, n_threads) {}

Result<std::unique_ptr<Evaluator>> Evaluator::create(const Model& model, KvDevice& device,
                                                     const KvFormat& format, Bytes budget,
                                                     int n_threads) {
  Result<KvLayout> layout = make_layout(model.geometry(), format);
  if (!layout) return layout.error();
  std::unique_ptr<Evaluator> evaluator(new Evaluator(model, device, budget, n_threads));
  KvCacheOptions options;
  options.address_space = budget;
  options.max_context = model.geometry().max_context;
  Result<std::unique_ptr<KvCache>> cache =
      KvCache::create(std::move(*layout), evaluator->budget_, device.memory(), options);
  if (!cache) return cache.error();
  evaluator->cache_ = std::move(*cache);
  evaluator->seq_ = evaluator->cache_->create_sequence();
  return evaluator;
}

Result<std::span<const float>> Evaluator::append(std::span<const Token> tokens,
                                                 std::span<const int32_t> output_rows) {
  const StepItem item{.seq = seq_, .n_tokens = static_cast<int64_t>(tokens.size())};
  Result<Step> step = cache_->plan_step({&item, 1});
  if (!step) return step.error();
  const std::vector<int64_t> positions = step->positions(0);
  logits_.resize(output_rows.size() * static_cast<size_t>(model_.n_vocab()));
  const StepInput input{.tokens = tokens, .positions = positions, .output_rows = output_rows};
  if (Status s = executor_.compute(input, cache_->layout(), *step, logits_); !s.ok()) return s;
  step->commit();
  return std::span<const float>(logits_);
}

Status Evaluator::read(
    std::span<const Token> tokens, int64_t step_tokens, bool all_rows,
    const std::function<void(int64_t first, std::span<const float> rows)>& on_rows) {
  for (size_t at = 0; at < tokens.size();) {
    const size_t n = std::min(static_cast<size_t>(step_tokens), tokens.size() - at);
    std::vector<int32_t> rows;
    if (all_rows) {
      rows.resize(n);
      std::iota(rows.begin(), rows.end(), 0);
    } else if (at + n == tokens.size()) {
      rows.push_back(static_cast<int32_t>(n) - 1);
    }
    Result<std::span<const float>> logits = append(tokens.subspan(at, n), rows);
    if (!logits) return logits.error();
    if (!rows.empty() && on_rows) on_rows(static_cast<int64_t>(at) + rows.front(), *logits);
    at += n;
  }
  return {};
}

void Evaluator::clear() {
  cache_->release(seq_);
  seq_ = cache_->create_sequence();
}

}  // namespace weir

#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace weir {

TokenLogprobs logprobs_of(std::span<const float> logits, Token chosen, int32_t n_top) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  const double log_sum = most + std::log(sum);
  const auto of = [&](Token token) {
    return TokenLogprob{token, static_cast<float>(logits[static_cast<size_t>(token)] - log_sum)};
  };

  TokenLogprobs result{of(chosen), {}};
  const auto n = std::clamp<int64_t>(n_top, 0, std::ssize(logits));
  if (n == 0) return result;
  std::vector<Token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](Token a, Token b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (int64_t i = 0; i < n; ++i) result.top.push_back(of(order[static_cast<size_t>(i)]));
  return result;
}

}  // namespace weir

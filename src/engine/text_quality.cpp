#include "engine/text_quality.h"

#include <algorithm>
#include <cmath>

namespace weir {
namespace {

struct Distribution {
  size_t likeliest;
  double log_total;  // of exp(logit)
};

Distribution distribution_of(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit - *best));
  return {static_cast<size_t>(best - logits.begin()), *best + std::log(total)};
}

}  // namespace

void Surprise::add(std::span<const float> logits, Token next) {
  const double surprise =
      distribution_of(logits).log_total - static_cast<double>(logits[static_cast<size_t>(next)]);
  sum += surprise;
  sum_of_squares += surprise * surprise;
  ++count;
}

double Surprise::perplexity() const { return std::exp(sum / static_cast<double>(count)); }

double Surprise::error() const {
  const double n = static_cast<double>(count);
  const double mean = sum / n;
  const double variance = std::max(0.0, sum_of_squares / n - mean * mean);
  return perplexity() * std::sqrt(variance / std::max(1.0, n - 1));
}

void Divergence::add(std::span<const float> expected, std::span<const float> logits) {
  const Distribution p = distribution_of(expected), q = distribution_of(logits);
  double divergence = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double log_p = expected[i] - p.log_total, log_q = logits[i] - q.log_total;
    divergence += std::exp(log_p) * (log_p - log_q);
  }
  sum += divergence;
  ++count;
  same += p.likeliest == q.likeliest ? 1 : 0;
}

Status TextQuality::read_window(std::span<const Token> tokens, int64_t step_tokens) {
  const size_t first_scored = tokens.size() / 2;
  for (size_t at = 0; at < tokens.size();) {
    const size_t n = std::min(static_cast<size_t>(step_tokens), tokens.size() - at);
    std::vector<int32_t> rows;
    for (size_t i = at; i < at + n; ++i) {
      if (i >= first_scored && i + 1 < tokens.size()) rows.push_back(static_cast<int32_t>(i - at));
    }
    std::span<const float> first;
    for (size_t reader = 0; reader < readers_.size(); ++reader) {
      const Result<std::span<const float>> logits = readers_[reader](tokens.subspan(at, n), rows);
      if (!logits) return logits.error();
      if (reader == 0) first = *logits;
      for (size_t r = 0; r < rows.size(); ++r) {
        const auto row = logits->subspan(r * n_vocab_, n_vocab_);
        results_[reader].surprise.add(row, tokens[at + static_cast<size_t>(rows[r]) + 1]);
        results_[reader].from_first.add(first.subspan(r * n_vocab_, n_vocab_), row);
      }
    }
    at += n;
  }
  return {};
}

}  // namespace weir

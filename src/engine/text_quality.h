#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer.h"

namespace weir {

// Mean of -log p of the tokens that came.
struct Surprise {
  double sum = 0, sum_of_squares = 0;
  int64_t count = 0;

  void add(std::span<const float> logits, Token next);
  double perplexity() const;
  double error() const;  // standard error of the perplexity, from that of the mean
};

// How far a reader's predictions are from another's: the mean Kullback-Leibler divergence, in nats
// a token, and how often both have the same likeliest token.
struct Divergence {
  double sum = 0;
  int64_t count = 0, same = 0;

  void add(std::span<const float> expected, std::span<const float> logits);
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  double agreement() const {
    return count > 0 ? static_cast<double>(same) / static_cast<double>(count) : 1;
  }
};

// Appends tokens to what it has read and gives the logits of some of them (indices into `tokens`,
// ascending), valid until its next call.
using TokenReader = std::function<Result<std::span<const float>>(std::span<const Token> tokens,
                                                                 std::span<const int32_t> rows)>;

// Several readers of one text side by side: how well each predicts it, and how far each is from the
// first.
class TextQuality {
 public:
  TextQuality(std::vector<TokenReader> readers, size_t n_vocab)
      : readers_(std::move(readers)), n_vocab_(n_vocab), results_(readers_.size()) {}

  // One window of the text, by llama.cpp's rule: the first half is context, each token of the
  // second half is predicted. Readers must have been cleared. Errors: those of the readers.
  Status read_window(std::span<const Token> tokens, int64_t step_tokens);

  struct Reader {
    Surprise surprise;
    Divergence from_first;
  };
  const Reader& of(size_t reader) const { return results_[reader]; }

 private:
  std::vector<TokenReader> readers_;
  size_t n_vocab_;
  std::vector<Reader> results_;
};

}  // namespace weir

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/tokenizer.h"

namespace weir {

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;  // natural logarithm
};

// What the model itself thought of a token: softmax of its logits, before penalties, biases,
// grammar, temperature and filters.
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // likeliest first, equal ones by token id
};

// `logits` has a row of the vocabulary, without NaN; `n_top` is cut to its size.
TokenLogprobs logprobs_of(std::span<const float> logits, Token chosen, int32_t n_top);

}  // namespace weir

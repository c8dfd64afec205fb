#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/grammar.h"
#include "engine/tokenizer.h"

struct llama_sampler;
struct llama_token_data;

namespace weir {

// How the next token is chosen. Names, defaults and order of application are llama.cpp's.
struct SamplingParams {
  float temperature = 0.8f;     // 0: greedy
  int32_t top_k = 40;           // 0: off
  float top_p = 0.95f;          // 1: off
  float min_p = 0.05f;          // 0: off
  int32_t repeat_last_n = 64;   // tokens that penalties look back on; -1: the whole context
  float repeat_penalty = 1.0f;  // 1: off
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  uint32_t seed = 0;
  std::string grammar;  // GBNF with a rule `root`, from the first token on; empty: none
  // A grammar that was parsed elsewhere than on the engine's thread, instead.
  std::shared_ptr<const Grammar> parsed_grammar;
  std::vector<std::pair<Token, float>> logit_bias;  // added to a token's logit; -inf bans it
};

// A chain of libllama's samplers with its state (random numbers, penalties, grammar).
class Sampler {
 public:
  // Errors: invalid_input, naming the parameter that is out of range or the grammar that does not
  // parse.
  static Result<Sampler> create(const SamplingParams& params, const Tokenizer& tokenizer);
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  ~Sampler();

  // Tells penalties about a token of the prompt. The grammar does not see it.
  void accept_prompt(Token token);
  // Chooses from n_vocab logits and remembers the choice.
  // Errors: invalid_input if the grammar leaves no token or takes seconds over one, internal if the
  // logits are not numbers.
  Result<Token> sample(std::span<const float> logits);

 private:
  struct Free {
    void operator()(llama_sampler* sampler) const;
  };

  Sampler() = default;
  Result<Token> choose(std::span<const float> logits);

  std::optional<Grammar> grammar_;
  std::unique_ptr<llama_sampler, Free> chain_;
  bool is_greedy_ = false;                    // nothing but the largest logit matters
  std::vector<llama_token_data> candidates_;  // [n_vocab], kept from token to token
};

}  // namespace weir

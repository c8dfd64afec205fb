#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer.h"

struct llama_sampler;
struct llama_token_data;

namespace weir {

// When a grammar begins to bind: not before the reply holds one of these.
struct GrammarTriggers {
  std::vector<std::string> words;     // literal text
  std::vector<std::string> patterns;  // ECMAScript, searched from the start of the reply; the
                                      // grammar starts at the first group, or at the match
  std::vector<Token> tokens;

  bool empty() const { return words.empty() && patterns.empty() && tokens.empty(); }
};

// Token sequences that begin and end a model's reasoning. Triggers do not count inside it.
struct ReasoningMarks {
  std::vector<Token> start;
  std::vector<std::vector<Token>> ends;
};

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
  std::string grammar;  // GBNF with a rule `root`; empty: none
  GrammarTriggers grammar_triggers;  // empty: the grammar binds from the first token
  ReasoningMarks reasoning;          // only read beside triggers
  // Tokens at the end of the prompt that the grammar counts as part of the reply: what a chat
  // template writes for the model. Not read beside triggers, but for where reasoning begins.
  std::vector<Token> grammar_prefix;
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
  // Errors: internal if the grammar leaves no token or takes seconds over one.
  Result<Token> sample(std::span<const float> logits);

 private:
  struct Free {
    void operator()(llama_sampler* sampler) const;
  };
  using SamplerPtr = std::unique_ptr<llama_sampler, Free>;

  Sampler() = default;
  Status add_grammar(const SamplingParams& params, const Tokenizer& tokenizer);
  bool grammar_binds() const;
  Result<Token> choose(std::span<const float> logits);
  bool grammar_allows(Token token);
  void accept(Token token);
  void feed_grammar(Token token);

  SamplerPtr grammar_;    // may be null
  SamplerPtr reasoning_;  // watches for the marks; null unless the grammar has triggers
  SamplerPtr chain_;
  bool is_greedy_ = false;                    // nothing but the largest logit matters
  std::vector<llama_token_data> candidates_;  // [n_vocab], kept from token to token

  // A grammar that still waits for a word, and what it has seen.
  struct Waiting {
    Tokenizer tokenizer;
    GrammarTriggers triggers;
    size_t longest_word;
    std::string text;         // the end of the reply, in which a word may have begun
    std::vector<Token> seen;  // since its memory was last cut
  };
  std::optional<Waiting> waiting_;
};

}  // namespace weir

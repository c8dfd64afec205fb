#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer.h"

struct llama_sampler;
struct llama_token_data_array;

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

struct GrammarParams {
  std::string text;          // GBNF with a rule `root`
  GrammarTriggers triggers;  // empty: it binds from the first token
  ReasoningMarks reasoning;  // only read beside triggers
  // Tokens at the end of the prompt that the grammar counts as part of the reply: what a chat
  // template writes for the model. Beside triggers only read for where reasoning begins.
  std::vector<Token> prefix;
};

// A grammar and how far a reply has come in it.
class Grammar {
 public:
  // Parses: may take a while and a deep stack, both bounded by what is refused before. Errors:
  // invalid_input, saying what does not parse.
  static Result<Grammar> create(const GrammarParams& params, const Tokenizer& tokenizer);
  Grammar(Grammar&&) noexcept;
  Grammar& operator=(Grammar&&) noexcept;
  ~Grammar();
  // The same state, without parsing again. May throw as below.
  Grammar clone() const;

  // Whether it has a say in the next token: not inside reasoning.
  bool binds() const;
  // These three may throw what libllama throws, which is std::length_error when the grammar allows
  // the same text in so many ways that following them would take seconds.
  bool allows(Token token);
  void filter(llama_token_data_array& candidates);  // sets the logits of others to -inf
  void accept(Token token);

 private:
  struct Free {
    void operator()(llama_sampler* sampler) const;
  };
  using SamplerPtr = std::unique_ptr<llama_sampler, Free>;
  // A grammar that still waits for a word, and what it has seen.
  struct Waiting {
    Tokenizer tokenizer;
    GrammarTriggers triggers;
    size_t longest_word = 0;
    std::string text;         // the end of the reply, in which a word may have begun
    std::vector<Token> seen;  // since its memory was last cut
  };

  // Units of some nanoseconds that libllama may work: to parse, and then for the replies of a
  // request together. They may save up for a hard token (an enum of a thousand words looks at the
  // whole vocabulary for each) but not take that long for every one.
  static constexpr int64_t kMostToParse = 100'000'000;
  static constexpr int64_t kMostWork = 300'000'000;
  static constexpr int64_t kWorkPerToken = 20'000'000;

  Grammar() = default;
  void build(const GrammarParams& params, const Tokenizer& tokenizer);
  void feed(Token token);

  SamplerPtr grammar_;
  SamplerPtr reasoning_;  // watches for the marks; may be null
  std::optional<Waiting> waiting_;
  // Clones share it, and a thread.
  std::shared_ptr<int64_t> work_left_ = std::make_shared<int64_t>(kMostWork);
};

}  // namespace weir

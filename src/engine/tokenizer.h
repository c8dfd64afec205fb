// engine/: one thread that owns the KV. Requests in, tokens out: scheduling, batching, sampling.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct llama_vocab;

namespace weir {

using Token = int32_t;

// Text to tokens and back, through libllama's vocabulary of the model's file.
class Tokenizer {
 public:
  explicit Tokenizer(const llama_vocab* vocab) : vocab_(vocab) {}

  // `add_bos`: put the begin-of-sequence token first if the model's file asks for it.
  // `parse_special`: text such as <start_of_turn> becomes its control token.
  // Errors: invalid_input if the text is too long to count.
  Result<std::vector<Token>> tokenize(std::string_view text, bool add_bos,
                                      bool parse_special) const;
  // The bytes of one token; control tokens give nothing unless `special`.
  std::string piece(Token token, bool special = false) const;
  std::string text(std::span<const Token> tokens, bool special = false) const;
  // End of generation: end of text, end of turn and the like.
  bool is_end(Token token) const;
  int32_t size() const;
  const llama_vocab* vocab() const { return vocab_; }

 private:
  const llama_vocab* vocab_;
};

}  // namespace weir

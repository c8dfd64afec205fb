#include "engine/tokenizer.h"

#include <limits>

#include "llama.h"

namespace weir {

Result<std::vector<Token>> Tokenizer::tokenize(std::string_view text, bool add_bos,
                                               bool parse_special) const {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()) / 2) {
    return Status(Code::invalid_input, "the text is longer than 1 GiB");
  }
  // A negative result is the number of tokens that there was no room for.
  std::vector<Token> tokens(text.size() / 3 + 16);
  for (;;) {
    const int32_t n =
        llama_tokenize(vocab_, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                       static_cast<int32_t>(tokens.size()), add_bos, parse_special);
    if (n == std::numeric_limits<int32_t>::min()) {
      return Status(Code::invalid_input, "the text has too many tokens to count");
    }
    tokens.resize(static_cast<size_t>(n < 0 ? -n : n));
    if (n >= 0) return tokens;
  }
}

std::string Tokenizer::piece(Token token, bool special) const {
  std::string bytes(32, '\0');
  int32_t n = llama_token_to_piece(vocab_, token, bytes.data(), static_cast<int32_t>(bytes.size()),
                                   0, special);
  if (n < 0) {
    bytes.resize(static_cast<size_t>(-n));
    n = llama_token_to_piece(vocab_, token, bytes.data(), static_cast<int32_t>(bytes.size()), 0,
                             special);
  }
  bytes.resize(static_cast<size_t>(n < 0 ? 0 : n));
  return bytes;
}

std::string Tokenizer::text(std::span<const Token> tokens, bool special) const {
  std::string all;
  for (const Token token : tokens) all += piece(token, special);
  return all;
}

bool Tokenizer::is_end(Token token) const { return llama_vocab_is_eog(vocab_, token); }

int32_t Tokenizer::size() const { return llama_vocab_n_tokens(vocab_); }

}  // namespace weir

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir {

// Turns the bytes of tokens into text that may be shown: never half a UTF-8 character, never a part
// of what may turn out to be a stop string.
class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stop_strings);

  // Adds a token's bytes; returns the text that is now certain.
  std::string push(std::string_view bytes);
  // A stop string was found: the text before it has been returned, the rest is dropped.
  bool is_stopped() const { return is_stopped_; }
  // What was held back, at the end of a generation that no stop string ended. Bytes that do not
  // make a character become U+FFFD.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool is_stopped_ = false;
};

// Number of leading bytes of `text` that are whole UTF-8 characters, as far as can be told: an
// incomplete last character is left out, a byte that can never be part of one is counted.
size_t complete_utf8(std::string_view text);

// Replaces every byte sequence that is not UTF-8 by U+FFFD.
std::string valid_utf8(std::string_view text);

}  // namespace weir

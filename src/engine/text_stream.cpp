#include "engine/text_stream.h"

#include <algorithm>

namespace weir {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Length of the character that starts with this byte; 0 if none does.
size_t utf8_length(char c) {
  const auto b = static_cast<unsigned char>(c);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return 2;
  if (b >= 0xE0 && b <= 0xEF) return 3;
  if (b >= 0xF0 && b <= 0xF4) return 4;
  return 0;
}

// Whether the second byte is one that may follow the first: no overlong forms, no surrogates, not
// above U+10FFFF (The Unicode Standard, table 3-7).
bool may_follow(char first, char second) {
  const auto b = static_cast<unsigned char>(second);
  switch (static_cast<unsigned char>(first)) {
    case 0xE0:
      return b >= 0xA0 && b <= 0xBF;
    case 0xED:
      return b >= 0x80 && b <= 0x9F;
    case 0xF0:
      return b >= 0x90 && b <= 0xBF;
    case 0xF4:
      return b >= 0x80 && b <= 0x8F;
    default:
      return is_continuation(second);
  }
}

// Length of the valid prefix of the character at the start of `text`, and whether it is whole.
struct Character {
  size_t length = 0;
  bool is_whole = false;
  bool is_cut_off = false;  // valid so far, and the text ends
};
Character next_character(std::string_view text) {
  const size_t need = utf8_length(text[0]);
  if (need == 0) return {1, false, false};
  size_t n = 1;
  while (n < need && n < text.size() &&
         (n == 1 ? may_follow(text[0], text[1]) : is_continuation(text[n]))) {
    ++n;
  }
  return {n, n == need, n < need && n == text.size()};
}

// Longest end of `text` that could be the start of `stop`.
size_t partial_stop(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

size_t complete_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Character c = next_character(text.substr(at));
    if (c.is_cut_off) break;
    at += c.length;
  }
  return at;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character c = next_character(text.substr(at));
    out += c.is_whole ? text.substr(at, c.length) : kReplacement;
    at += c.length;
  }
  return out;
}

TextStream::TextStream(std::vector<std::string> stop_strings) : stops_(std::move(stop_strings)) {
  std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
}

std::string TextStream::push(std::string_view bytes) {
  if (is_stopped_) return {};
  held_ += bytes;

  size_t stop_at = std::string::npos;
  for (const std::string& stop : stops_) stop_at = std::min(stop_at, held_.find(stop));
  if (stop_at != std::string::npos) {
    is_stopped_ = true;
    std::string text = valid_utf8(std::string_view(held_).substr(0, stop_at));
    held_.clear();
    return text;
  }

  size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, partial_stop(held_, stop));
  const size_t certain = complete_utf8(std::string_view(held_).substr(0, held_.size() - keep));
  std::string text = valid_utf8(std::string_view(held_).substr(0, certain));
  held_.erase(0, certain);
  return text;
}

std::string TextStream::finish() {
  std::string text = valid_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace weir

#include "engine/grammar_check.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace weir {
namespace {

constexpr size_t kMostBytes = 1 << 20;
constexpr int kDeepest = 200;
// Rules of the text, and those that repetitions make; libllama follows them by recursion when it
// looks for left recursion.
constexpr size_t kMostRules = 200000;
// Elements of 8 bytes that repetitions copy.
constexpr size_t kMostElements = 8 << 20;

class GrammarCheck {
 public:
  explicit GrammarCheck(std::string_view text) : text_(text) {}

  Status run() {
    if (text_.size() > kMostBytes) {
      return refuse("has " + std::to_string(text_.size()) + " bytes, more than 1 MiB");
    }
    if (text_.find('\0') != std::string_view::npos) return refuse("has a NUL byte");
    while (at_ < text_.size()) {
      if (Status s = step(); !s.ok()) return s;
    }
    return {};
  }

 private:
  static Status refuse(const std::string& what) {
    return Status(Code::invalid_input, "the grammar " + what);
  }

  Status step() {
    const char c = text_[at_++];
    switch (c) {
      case '#':
        at_ = std::min(text_.find('\n', at_), text_.size());
        break;
      case '"':
      case '[':
        item_ = skip_quoted(c == '"' ? '"' : ']');
        break;
      case '(':
        if (++depth_ > kDeepest) {
          return refuse("nests parentheses more than " + std::to_string(kDeepest) + " deep");
        }
        break;
      case ')':
        --depth_;
        item_ = 1;
        break;
      case '{':
        return repetition();
      case '*':
      case '+':
      case '?':
        return count(1, item_);
      case '=':
        if (Status s = count(1, 0); !s.ok()) return s;
        break;
      default:
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') item_ = 1;
    }
    return {};
  }

  // Behind the closing character; the bytes passed, which are at least the elements they become.
  size_t skip_quoted(char end) {
    const size_t start = at_;
    while (at_ < text_.size() && text_[at_] != end) at_ += text_[at_] == '\\' ? 2 : 1;
    const size_t length = std::min(at_, text_.size()) - start;
    at_ = std::min(at_ + 1, text_.size());
    return length + 1;
  }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }

  // Large ones are cut: whatever they are, they are refused.
  std::optional<uint64_t> number() {
    skip_space();
    std::optional<uint64_t> value;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = std::min<uint64_t>(value.value_or(0) * 10 + static_cast<uint64_t>(text_[at_] - '0'),
                                 UINT32_MAX);
    }
    skip_space();
    return value;
  }

  // {n}, {n,}, {n,m}
  Status repetition() {
    const std::optional<uint64_t> least = number();
    std::optional<uint64_t> most = least;
    if (at_ < text_.size() && text_[at_] == ',') {
      ++at_;
      most = number();
    }
    if (least && most && *most < *least) {
      return refuse("repeats at least " + std::to_string(*least) + " and at most " +
                    std::to_string(*most) + " times");
    }
    const uint64_t times = most.value_or(least.value_or(0));
    if (times > kMostRules) {
      return refuse("repeats something more than " + std::to_string(kMostRules) + " times");
    }
    return count(times, item_);
  }

  Status count(size_t times, size_t item) {
    rules_ += times;
    elements_ += times * item;
    if (rules_ > kMostRules || elements_ > kMostElements) {
      return refuse("unfolds to more than " + std::to_string(kMostRules) + " rules or " +
                    std::to_string(kMostElements) + " elements");
    }
    return {};
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  size_t item_ = 1;  // elements of what a repetition would repeat
  size_t rules_ = 0, elements_ = 0;
};

}  // namespace

Status check_grammar(std::string_view text) { return GrammarCheck(text).run(); }

}  // namespace weir

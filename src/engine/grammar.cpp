#include "engine/grammar.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <exception>
#include <stdexcept>

#include "engine/grammar_check.h"
#include "llama.h"
#include "reasoning-budget.h"

// scripts/llama-grammar.patch: limits the work of grammars on this thread; returns what was left.
int64_t llama_grammar_limit_work(int64_t units);

namespace weir {
namespace {

// Takes the work that libllama does in its scope from what a grammar has left.
class MeteredWork {
 public:
  explicit MeteredWork(int64_t& left) : left_(left) { llama_grammar_limit_work(left); }
  ~MeteredWork() { left_ = std::max<int64_t>(0, llama_grammar_limit_work(INT64_MAX)); }
  MeteredWork(const MeteredWork&) = delete;
  MeteredWork& operator=(const MeteredWork&) = delete;

 private:
  int64_t& left_;
};

// The start of libllama's complaint, which ends with the rest of the text.
std::string short_reason(std::string_view what) {
  constexpr size_t kMost = 80;
  if (what == "stoul" || what == "stoi") return "a number in it is too large";
  std::string line(what.substr(0, std::min(what.find('\n'), kMost)));
  return line.size() < what.size() ? line + " ..." : line;
}

// Tokens after which a grammar that waits for a word is made to forget what it has seen: it
// searches all of that at each token, and a reply should not pay for its length.
constexpr size_t kMostSeen = 512;

// Text as a regular expression that matches it and nothing else.
std::string literal_pattern(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view(R"(.^$|()[]{}*+?\)").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace

void Grammar::Free::operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
Grammar::Grammar(Grammar&&) noexcept = default;
Grammar& Grammar::operator=(Grammar&&) noexcept = default;
Grammar::~Grammar() = default;

Result<Grammar> Grammar::create(const GrammarParams& params, const Tokenizer& tokenizer) {
  if (Status s = check_grammar(params.text); !s.ok()) return s;
  Grammar grammar;
  try {
    grammar.build(params, tokenizer);
  } catch (const std::length_error&) {
    return Status(Code::invalid_input,
                  "the grammar is too large, or allows the same text in too many ways");
  } catch (const std::exception& e) {
    return Status(Code::invalid_input, "the grammar does not parse: " + short_reason(e.what()));
  }
  if (!grammar.grammar_) {
    return Status(Code::invalid_input,
                  "the grammar is none: it must have a rule 'root' and no left recursion");
  }
  return grammar;
}

void Grammar::build(const GrammarParams& p, const Tokenizer& tokenizer) {
  int64_t to_parse = kMostToParse;
  const MeteredWork metered(to_parse);
  const llama_vocab* vocab = tokenizer.vocab();
  if (p.triggers.empty()) {
    grammar_.reset(llama_sampler_init_grammar(vocab, p.text.c_str(), "root"));
    for (const Token token : p.prefix) {
      if (!grammar_) return;
      if (tokenizer.is_end(token)) throw std::invalid_argument("an end in the prefix");
      llama_sampler_accept(grammar_.get(), token);
    }
    return;
  }
  std::vector<std::string> patterns = p.triggers.patterns;
  for (const std::string& word : p.triggers.words) patterns.push_back(literal_pattern(word));
  std::vector<const char*> pointers;
  for (const std::string& pattern : patterns) pointers.push_back(pattern.c_str());
  grammar_.reset(llama_sampler_init_grammar_lazy_patterns(
      vocab, p.text.c_str(), "root", pointers.data(), pointers.size(), p.triggers.tokens.data(),
      p.triggers.tokens.size()));
  if (p.triggers.patterns.empty()) {
    size_t longest = 0;
    for (const std::string& word : p.triggers.words) longest = std::max(longest, word.size());
    waiting_ = {tokenizer, p.triggers, longest, {}, {}};
  }
  if (!p.reasoning.start.empty() && !p.reasoning.ends.empty()) {
    reasoning_.reset(common_reasoning_budget_init(vocab, {p.reasoning.start}, p.reasoning.ends,
                                                  p.reasoning.ends.front(), INT_MAX));
    for (const Token token : p.prefix) llama_sampler_accept(reasoning_.get(), token);
  }
}

Grammar Grammar::clone() const {
  Grammar copy;
  copy.work_left_ = work_left_;
  const MeteredWork metered(*work_left_);
  copy.grammar_.reset(llama_sampler_clone(grammar_.get()));
  if (reasoning_) copy.reasoning_.reset(llama_sampler_clone(reasoning_.get()));
  copy.waiting_ = waiting_;
  return copy;
}

bool Grammar::binds() const {
  if (!reasoning_) return true;
  const auto state = common_reasoning_budget_get_state(reasoning_.get());
  return state == REASONING_BUDGET_IDLE || state == REASONING_BUDGET_DONE;
}

bool Grammar::allows(Token token) {
  llama_token_data one{token, 1.0f, 0.0f};
  llama_token_data_array array{&one, 1, -1, false};
  filter(array);
  return !std::isinf(one.logit);
}

void Grammar::filter(llama_token_data_array& candidates) {
  const MeteredWork metered(*work_left_);
  llama_sampler_apply(grammar_.get(), &candidates);
}

void Grammar::accept(Token token) {
  const bool is_bound = binds();
  if (reasoning_) {
    llama_sampler_accept(reasoning_.get(), token);
    // What ends the reasoning may begin a tool call.
    if (!is_bound && binds()) {
      if (const auto* end = common_reasoning_budget_get_end_match(reasoning_.get())) {
        for (const llama_token t : *end) feed(t);
      }
    }
  }
  if (is_bound) feed(token);
}

void Grammar::feed(Token token) {
  *work_left_ = std::min(*work_left_ + kWorkPerToken, kMostWork);
  const MeteredWork metered(*work_left_);
  llama_sampler_accept(grammar_.get(), token);
  if (!waiting_) return;
  Waiting& w = *waiting_;
  w.text += w.tokenizer.piece(token, true);
  const auto& tokens = w.triggers.tokens;
  if (std::find(tokens.begin(), tokens.end(), token) != tokens.end() ||
      std::any_of(w.triggers.words.begin(), w.triggers.words.end(), [&](const std::string& word) {
        return w.text.find(word) != std::string::npos;
      })) {
    waiting_.reset();  // it binds from here on
    return;
  }
  if (w.text.size() > w.longest_word) w.text.erase(0, w.text.size() - w.longest_word);
  w.seen.push_back(token);
  if (w.seen.size() < kMostSeen + w.longest_word) return;
  // A token may be a single byte of a word.
  w.seen.erase(w.seen.begin(), w.seen.end() - static_cast<std::ptrdiff_t>(w.longest_word));
  llama_sampler_reset(grammar_.get());
  for (const Token t : w.seen) llama_sampler_accept(grammar_.get(), t);
}

}  // namespace weir

#include "engine/sampler.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "llama.h"
#include "reasoning-budget.h"

namespace weir {
namespace {

Status check_ranges(const SamplingParams& p, const Tokenizer& tokenizer) {
  const auto bad = [](const char* name, const char* range) {
    return Status(Code::invalid_input, std::string(name) + " must be " + range);
  };
  // Written so that NaN fails every test.
  if (!(p.temperature >= 0 && p.temperature < 1e6f)) return bad("temperature", "0 or more");
  if (!(p.top_p > 0 && p.top_p <= 1)) return bad("top-p", "over 0 and at most 1");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return bad("min-p", "from 0 to 1");
  if (!(p.repeat_penalty > 0 && p.repeat_penalty < 1e6f)) return bad("repeat penalty", "over 0");
  if (!std::isfinite(p.frequency_penalty)) return bad("frequency penalty", "a finite number");
  if (!std::isfinite(p.presence_penalty)) return bad("presence penalty", "a finite number");
  if (p.repeat_last_n < 0 || p.repeat_last_n > (1 << 24)) {
    return bad("repeat-last-n", "0 (off) or a number of tokens");
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= tokenizer.size())
      return bad("a logit bias's token", "in the vocabulary");
    if (std::isnan(bias)) return bad("a logit bias", "a number");
  }
  return {};
}

constexpr size_t kMostGrammarBytes = 1 << 20;

// What libllama's parser does not survive: it descends into parentheses by recursion, and unrolls
// {most,least} without end.
Status check_grammar(const std::string& grammar) {
  if (grammar.size() > kMostGrammarBytes) {
    return Status(Code::invalid_input, "the grammar has " + std::to_string(grammar.size()) +
                                           " bytes, more than 1 MiB");
  }
  constexpr int kDeepest = 200;
  int depth = 0;
  char quote = 0;  // inside a literal or a character class: the character that ends it
  for (size_t i = 0; i < grammar.size(); ++i) {
    const char c = grammar[i];
    if (c == '\\') {
      ++i;
    } else if (quote) {
      if (c == quote) quote = 0;
    } else if (c == '#') {
      i = std::min(grammar.find('\n', i), grammar.size());
    } else if (c == '"' || c == '[') {
      quote = c == '"' ? '"' : ']';
    } else if (c == '(') {
      if (++depth > kDeepest) {
        return Status(Code::invalid_input, "the grammar nests parentheses more than 200 deep");
      }
    } else if (c == ')') {
      --depth;
    } else if (c == '{') {
      unsigned least = 0, most = 0;
      if (std::sscanf(grammar.c_str() + i, "{%u,%u}", &least, &most) == 2 && most < least) {
        return Status(Code::invalid_input, "the grammar repeats at least " + std::to_string(least) +
                                               " and at most " + std::to_string(most) + " times");
      }
    }
  }
  return {};
}

// A grammar that allows one text in many ways multiplies its states with every character, and the
// engine's thread with it waits for nobody. Seconds for a single token are the sign.
constexpr std::chrono::seconds kLongestGrammarTime{5};

// Tokens after which a grammar that waits for a word is made to forget what it has seen: it searches
// all of that at each token, and a reply should not pay for its length.
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

void Sampler::Free::operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

Result<Sampler> Sampler::create(const SamplingParams& p, const Tokenizer& tokenizer) {
  if (Status s = check_ranges(p, tokenizer); !s.ok()) return s;
  Sampler sampler;
  if (!p.grammar.empty()) {
    if (Status s = sampler.add_grammar(p, tokenizer); !s.ok()) return s;
  }

  sampler.chain_.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  const auto add = [&](llama_sampler* s) { llama_sampler_chain_add(sampler.chain_.get(), s); };
  if (!p.logit_bias.empty()) {
    std::vector<llama_logit_bias> biases;
    biases.reserve(p.logit_bias.size());
    for (const auto& [token, bias] : p.logit_bias) biases.push_back({token, bias});
    add(llama_sampler_init_logit_bias(tokenizer.size(), static_cast<int32_t>(biases.size()),
                                      biases.data()));
  }
  const bool has_penalties =
      p.repeat_last_n != 0 &&
      (p.repeat_penalty != 1.0f || p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f);
  if (has_penalties) {
    add(llama_sampler_init_penalties(tokenizer.size(), p.repeat_last_n, p.repeat_penalty,
                                     p.frequency_penalty, p.presence_penalty));
  }
  if (p.temperature == 0.0f) {
    add(llama_sampler_init_greedy());
    sampler.is_greedy_ = p.logit_bias.empty() && !has_penalties && !sampler.grammar_;
  } else {
    add(llama_sampler_init_top_k(p.top_k));
    add(llama_sampler_init_top_p(p.top_p, 1));
    add(llama_sampler_init_min_p(p.min_p, 1));
    add(llama_sampler_init_temp(p.temperature));
    add(llama_sampler_init_dist(p.seed));
  }
  return sampler;
}

Status Sampler::add_grammar(const SamplingParams& p, const Tokenizer& tokenizer) {
  if (Status s = check_grammar(p.grammar); !s.ok()) return s;
  const GrammarTriggers& triggers = p.grammar_triggers;
  const llama_vocab* vocab = tokenizer.vocab();
  try {
    if (triggers.empty()) {
      grammar_.reset(llama_sampler_init_grammar(vocab, p.grammar.c_str(), "root"));
      if (grammar_) {
        for (const Token token : p.grammar_prefix) {
          if (tokenizer.is_end(token)) throw std::invalid_argument("an end in the prefix");
          llama_sampler_accept(grammar_.get(), token);
        }
      }
    } else {
      std::vector<std::string> patterns = triggers.patterns;
      for (const std::string& word : triggers.words) patterns.push_back(literal_pattern(word));
      std::vector<const char*> pointers;
      for (const std::string& pattern : patterns) pointers.push_back(pattern.c_str());
      grammar_.reset(llama_sampler_init_grammar_lazy_patterns(
          vocab, p.grammar.c_str(), "root", pointers.data(), pointers.size(),
          triggers.tokens.data(), triggers.tokens.size()));
      if (triggers.patterns.empty()) {
        size_t longest = 0;
        for (const std::string& word : triggers.words) longest = std::max(longest, word.size());
        waiting_ = {tokenizer, triggers, longest, {}, {}};
      }
      if (!p.reasoning.start.empty() && !p.reasoning.ends.empty()) {
        reasoning_.reset(common_reasoning_budget_init(vocab, {p.reasoning.start}, p.reasoning.ends,
                                                      p.reasoning.ends.front(), INT_MAX));
        for (const Token token : p.grammar_prefix) llama_sampler_accept(reasoning_.get(), token);
      }
    }
  } catch (const std::exception&) {
    // Reported below: to the user a grammar that throws and one that fails are the same.
    grammar_.reset();
  }
  if (!grammar_) {
    return Status(Code::invalid_input,
                  "the grammar does not parse; it must be GBNF with a rule 'root'");
  }
  return {};
}

void Sampler::accept_prompt(Token token) { llama_sampler_accept(chain_.get(), token); }

bool Sampler::grammar_binds() const {
  if (!grammar_) return false;
  if (!reasoning_) return true;
  const auto state = common_reasoning_budget_get_state(reasoning_.get());
  return state == REASONING_BUDGET_IDLE || state == REASONING_BUDGET_DONE;
}

Result<Token> Sampler::sample(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  // A NaN anywhere would be chosen by one comparison and skipped by the next.
  if (!std::isfinite(*best) ||
      std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); })) {
    return Status(Code::internal, "the model's logits are not numbers; its file may be damaged");
  }
  if (is_greedy_) return static_cast<Token>(best - logits.begin());
  try {
    const auto start = std::chrono::steady_clock::now();
    Result<Token> token = choose(logits);
    if (token) accept(*token);
    if (grammar_ && std::chrono::steady_clock::now() - start > kLongestGrammarTime) {
      return Status(Code::invalid_input,
                    "the grammar takes more than 5 s for a token; it allows the same text in too "
                    "many ways");
    }
    return token;
  } catch (const std::exception& e) {
    return Status(Code::internal, std::string("sampling failed: ") + e.what());
  }
}

// The grammar looks at every token of the vocabulary, which takes longer than all else; so it is
// asked about the choice first, and about the rest only when it refuses.
Result<Token> Sampler::choose(std::span<const float> logits) {
  const bool is_bound = grammar_binds();
  for (const bool is_filtered : {false, true}) {
    candidates_.resize(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      candidates_[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
    }
    llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
    if (is_filtered) llama_sampler_apply(grammar_.get(), &array);
    llama_sampler_apply(chain_.get(), &array);
    const bool has_choice = array.selected >= 0 && !std::isinf(array.data[array.selected].logit);
    if (has_choice) {
      const Token token = array.data[array.selected].id;
      if (!is_bound || is_filtered || grammar_allows(token)) return token;
    } else if (!is_bound || is_filtered) {
      break;
    }
  }
  return is_bound ? Status(Code::internal, "the grammar allows no further token")
                  : Status(
                        Code::invalid_input,
                        "the sampling parameters leave no token; check temperature and penalties");
}

bool Sampler::grammar_allows(Token token) {
  llama_token_data one{token, 1.0f, 0.0f};
  llama_token_data_array array{&one, 1, -1, false};
  llama_sampler_apply(grammar_.get(), &array);
  return !std::isinf(one.logit);
}

void Sampler::accept(Token token) {
  const bool is_bound = grammar_binds();
  if (reasoning_) {
    llama_sampler_accept(reasoning_.get(), token);
    // What ends the reasoning may begin a tool call.
    if (!is_bound && grammar_binds()) {
      if (const auto* end = common_reasoning_budget_get_end_match(reasoning_.get())) {
        for (const llama_token t : *end) feed_grammar(t);
      }
    }
  }
  if (is_bound) feed_grammar(token);
  llama_sampler_accept(chain_.get(), token);
}

void Sampler::feed_grammar(Token token) {
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

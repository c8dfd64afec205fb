#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "llama.h"

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

Status too_much_grammar() {
  return Status(
      Code::invalid_input,
      "the grammar takes too long for a token; it is too large, or allows the same text in too "
      "many ways");
}

}  // namespace

void Sampler::Free::operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

Result<Sampler> Sampler::create(const SamplingParams& p, const Tokenizer& tokenizer) {
  if (Status s = check_ranges(p, tokenizer); !s.ok()) return s;
  Sampler sampler;
  if (p.parsed_grammar) {
    try {
      sampler.grammar_ = p.parsed_grammar->clone();
    } catch (const std::exception&) {
      return too_much_grammar();
    }
  } else if (!p.grammar.empty()) {
    Result<Grammar> grammar = Grammar::create({.text = p.grammar}, tokenizer);
    if (!grammar) return grammar.error();
    sampler.grammar_ = std::move(*grammar);
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

void Sampler::accept_prompt(Token token) { llama_sampler_accept(chain_.get(), token); }

Result<Token> Sampler::sample(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  // A NaN anywhere would be chosen by one comparison and skipped by the next.
  if (!std::isfinite(*best) ||
      std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); })) {
    return Status(Code::internal, "the model's logits are not numbers; its file may be damaged");
  }
  if (is_greedy_) return static_cast<Token>(best - logits.begin());
  try {
    Result<Token> token = choose(logits);
    if (token) {
      if (grammar_) grammar_->accept(*token);
      llama_sampler_accept(chain_.get(), *token);
    }
    return token;
  } catch (const std::length_error&) {
    return too_much_grammar();
  } catch (const std::exception& e) {
    return Status(Code::internal, std::string("sampling failed: ") + e.what());
  }
}

// The grammar looks at every token of the vocabulary, which takes longer than all else; so it is
// asked about the choice first, and about the rest only when it refuses.
Result<Token> Sampler::choose(std::span<const float> logits) {
  const bool is_bound = grammar_ && grammar_->binds();
  for (const bool is_filtered : {false, true}) {
    candidates_.resize(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      candidates_[i] = {static_cast<llama_token>(i), logits[i], 0.0f};
    }
    llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
    if (is_filtered) grammar_->filter(array);
    llama_sampler_apply(chain_.get(), &array);
    const bool has_choice = array.selected >= 0 && !std::isinf(array.data[array.selected].logit);
    if (has_choice) {
      const Token token = array.data[array.selected].id;
      if (!is_bound || is_filtered || grammar_->allows(token)) return token;
    } else if (!is_bound || is_filtered) {
      break;
    }
  }
  return is_bound
             ? Status(Code::invalid_input, "the grammar allows no further token")
             : Status(Code::invalid_input,
                      "the sampling parameters leave no token; check temperature and penalties");
}

}  // namespace weir

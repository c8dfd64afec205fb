#include "engine/sampler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "engine/testing/tiny_engine.h"
#include "llama.h"

namespace weir {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer tiny(tiny_model().vocab());
  return tiny;
}

std::vector<Token> tokens_of(const std::string& text) {
  return *tokenizer().tokenize(text, false, true);
}

Sampler greedy_in(const GrammarParams& grammar) {
  SamplingParams params;
  params.temperature = 0;
  params.parsed_grammar = std::make_shared<const Grammar>(*Grammar::create(grammar, tokenizer()));
  return *Sampler::create(params, tokenizer());
}

// What the sampler takes when the model wants nothing but `wanted`.
Token offer(Sampler& sampler, Token wanted) {
  std::vector<float> logits(static_cast<size_t>(tokenizer().size()), 0.0f);
  logits[static_cast<size_t>(wanted)] = 100;
  Result<Token> token = sampler.sample(logits);
  EXPECT_TRUE(token.ok()) << token.status().message();
  return token.ok() ? *token : -1;
}

// Whether it takes every token of `text`.
bool takes(Sampler& sampler, const std::string& text) {
  for (const Token token : tokens_of(text)) {
    if (offer(sampler, token) != token) return false;
  }
  return true;
}

TEST(Sampler, GrammarThatWaitsBindsFromItsWordOn) {
  GrammarParams params{.text = "root ::= \"<call>\" [0-9] \"</call>\""};
  params.triggers.words = {"<call>"};
  Sampler free = greedy_in(params);
  EXPECT_TRUE(takes(free, "Once upon a time <cal 7 king"));

  Sampler bound = greedy_in(params);
  EXPECT_TRUE(takes(bound, "A king <call>7"));
  EXPECT_FALSE(takes(bound, "king"));
}

// The library searches all that it has seen at each token; what is forgotten must
// not be a word that has begun, and a grammar that binds must not be set back.
TEST(Sampler, WaitingGrammarForgetsWithoutMissingItsWord) {
  GrammarParams params{.text = "root ::= \"<call>\" [0-9]+ \"</call>\""};
  params.triggers.words = {"<call>"};
  const std::vector<Token> word = tokens_of("<call>");
  ASSERT_GT(word.size(), 1u);
  const Token filler = tokens_of("king").back();
  for (int before = 505; before < 525; ++before) {
    Sampler sampler = greedy_in(params);
    for (int i = 0; i < before; ++i) ASSERT_EQ(offer(sampler, filler), filler);
    for (const Token token : word) ASSERT_EQ(offer(sampler, token), token);
    EXPECT_NE(offer(sampler, filler), filler) << before;
    EXPECT_TRUE(takes(sampler, "12345")) << before;
  }
  Sampler bound = greedy_in(params);
  ASSERT_TRUE(takes(bound, "<call>"));
  for (int i = 0; i < 1200; ++i) ASSERT_TRUE(takes(bound, "7")) << i;
  EXPECT_FALSE(takes(bound, "king"));
}

TEST(Sampler, WordInsideReasoningDoesNotBind) {
  GrammarParams params{.text = "root ::= \"<call>\" [0-9] \"</call>\""};
  params.triggers.words = {"<call>"};
  params.reasoning = {tokens_of("[think]"), {tokens_of("[/think]")}};
  Sampler sampler = greedy_in(params);
  EXPECT_TRUE(takes(sampler, "[think]perhaps <call>king[/think]"));
  EXPECT_TRUE(takes(sampler, " so <call>7"));
  EXPECT_FALSE(takes(sampler, "king"));

  params.prefix = tokens_of("[think]");  // the template began the reasoning
  Sampler begun = greedy_in(params);
  EXPECT_TRUE(takes(begun, "perhaps <call>king"));
}

TEST(Sampler, PrefixOfTheReplyIsTheGrammarsBeginning) {
  GrammarParams params{.text = "root ::= \"model says \" [0-9]"};
  params.prefix = tokens_of("model says ");
  Sampler sampler = greedy_in(params);
  EXPECT_FALSE(takes(sampler, "model"));
  sampler = greedy_in(params);
  EXPECT_TRUE(takes(sampler, "7"));

  params.prefix = tokens_of("something else");
  EXPECT_EQ(Grammar::create(params, tokenizer()).status().code(), Code::invalid_input);
}

TEST(Sampler, BiasForcesAndBansTokens) {
  SamplingParams params;
  params.temperature = 0;
  const Token king = tokens_of("king").back(), tale = tokens_of("tale").back();
  params.logit_bias = {{king, -std::numeric_limits<float>::infinity()}, {tale, 50}};
  Sampler sampler = *Sampler::create(params, tokenizer());
  EXPECT_EQ(offer(sampler, king), tale);
  params.logit_bias = {{tokenizer().size(), 1}};
  EXPECT_EQ(Sampler::create(params, tokenizer()).status().code(), Code::invalid_input);
}

// Asking the grammar about the choice alone must not change what may be chosen.
TEST(Sampler, GrammarIsObeyedWhateverTheModelWants) {
  SamplingParams params;
  params.grammar = "root ::= (\"a\" | \"b\")+ \"!\"";
  params.temperature = 1;
  params.top_k = 0;
  Sampler sampler = *Sampler::create(params, tokenizer());
  std::vector<float> logits(static_cast<size_t>(tokenizer().size()), 0.0f);
  std::string text;
  for (int i = 0; i < 200 && (text.empty() || text.back() != '!'); ++i) {
    for (size_t t = 0; t < logits.size(); ++t) {
      logits[t] = static_cast<float>((t * 2654435761u + static_cast<size_t>(i) * 97) % 1000) / 300;
    }
    Result<Token> token = sampler.sample(logits);
    ASSERT_TRUE(token.ok()) << token.status().message();
    text += tokenizer().piece(*token);
  }
  EXPECT_EQ(text.find_first_not_of("ab"), text.size() - 1) << text;
  EXPECT_EQ(text.back(), '!');
}

TEST(Grammar, CloneGoesOnFromWhereItWasMade) {
  GrammarParams params{.text = "root ::= \"<call>\" [0-9] \"</call>\""};
  params.triggers.words = {"<call>"};
  Grammar first = *Grammar::create(params, tokenizer());
  for (const Token token : tokens_of("A <call>")) first.accept(token);
  Grammar second = first.clone();
  const Token king = tokens_of("king").back(), seven = tokens_of("7").back();
  first.accept(seven);
  EXPECT_FALSE(first.allows(seven));
  EXPECT_TRUE(second.allows(seven));
  EXPECT_FALSE(second.allows(king));
}

// Each of these would take the process down, or its memory, in libllama's parser.
TEST(Grammar, HostileTextIsRefused) {
  const std::string long_literal(60000, 'a');
  std::string repeats;
  for (int i = 0; i < 200; ++i) repeats += "r" + std::to_string(i) + " ::= \"a\"{1999}\n";
  for (const std::string& text :
       {"root ::= " + std::string(100000, '('), std::string("root ::= \"a\"{5,3}"),
        std::string("root ::= \"a\"{ 5 , 3 }"), std::string("root ::= \"a\"{5, # more\n 3}"),
        std::string("root ::= \"a\"{99999999999999999999}"),
        "root ::= \"" + long_literal + "\"{1999}", "root ::= [" + long_literal + "]{0,1999}",
        "root ::= r0\n" + repeats, std::string("root ::= \"a\"\0", 13),
        "root ::= \"" + std::string(2 << 20, 'a') + "\""}) {
    const Result<Grammar> grammar = Grammar::create({.text = text}, tokenizer());
    ASSERT_FALSE(grammar.ok()) << text.substr(0, 60);
    EXPECT_EQ(grammar.error().message().find("does not parse"), std::string::npos)
        << text.substr(0, 60);
  }
  EXPECT_TRUE(Grammar::create({.text = "root ::= \"{5,3}\" [{5,3}] # {5,3}\n"}, tokenizer()).ok());
}

// What a client's grammar, or the one that its schema's pattern becomes, may make libllama do:
// some of these would take it minutes or gigabytes, for one token.
std::vector<std::string> ambiguous_grammars() {
  std::string optional = "root ::= \"x\"";
  for (int i = 0; i < 2000; ++i) optional += " \"a\"?";
  std::string pairs = "root ::= r0\n", deep = pairs;
  for (int i = 0; i < 60; ++i) pairs += fmt::format("r{} ::= r{} r{}\n", i, i + 1, i + 1);
  for (int i = 0; i < 3000; ++i) deep += fmt::format("r{} ::= r{} \"x\"\n", i, i + 1);
  return {R"(root ::= (((("a"?){20}){20}){20}){20})",
          R"(root ::= "x" (((("a"?){20}){20}){20}){20})",
          "root ::= (([a-z]?){255}){255}",
          optional + optional.substr(12),
          "root ::= \"a\" root x | \"a\" root y | \"a\"\nx ::= \"x\"\ny ::= \"y\"\n",
          pairs + "r60 ::= [a-z ]?",
          deep + R"(r3000 ::= ((("a"?){20}){20}){20})"};
}

TEST(Grammar, AmbiguousTextEndsTheReplyInsteadOfHoldingTheEngine) {
  for (const std::string& text : ambiguous_grammars()) {
    SamplingParams params{.temperature = 0};
    params.grammar = text;
    Result<Sampler> sampler = Sampler::create(params, tokenizer());
    Status end = sampler ? Status() : sampler.error();
    std::vector<float> logits(static_cast<size_t>(tokenizer().size()));
    for (const char* likely : {"x", "a"}) {
      logits[static_cast<size_t>(tokenizer().tokenize(likely, false, false)->back())] = 1;
    }
    for (int i = 0; i < 1000 && end.ok(); ++i) {
      const Result<Token> token = sampler->sample(logits);
      if (!token) end = token.error();
    }
    EXPECT_EQ(end.code(), Code::invalid_input) << text.substr(0, 60);
    EXPECT_NE(end.message().find("too many ways"), std::string::npos) << end.message();
  }
}

std::vector<llama_token_data> whole_vocabulary() {
  std::vector<llama_token_data> all(static_cast<size_t>(tokenizer().size()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = {static_cast<llama_token>(i), 0.0f, 0.0f};
  return all;
}

// Each alternative is compared with all of the class, for each token of the vocabulary.
TEST(Grammar, LongClassesCount) {
  std::string text = "root ::= c \"0\"";
  for (int i = 1; i < 200; ++i) text += fmt::format(" | c \"{}\"", i);
  text += "\nc ::= [" + std::string(50000, '~') + "]\n";
  Result<Grammar> grammar = Grammar::create({.text = text}, tokenizer());
  ASSERT_TRUE(grammar.ok());
  std::vector<llama_token_data> all = whole_vocabulary();
  llama_token_data_array array{all.data(), all.size(), -1, false};
  EXPECT_THROW(grammar->filter(array), std::length_error);
}

// A chain of rules that name the next one twice: no more work than a plain chain.
TEST(Grammar, ChainsThatDoubleAreFollowedOnce) {
  std::string text = "root ::= r0\n";
  for (int i = 0; i < 400; ++i) text += fmt::format("r{} ::= r{} | r{}\n", i, i + 1, i + 1);
  Result<Grammar> grammar = Grammar::create({.text = text + "r400 ::= [a-z]+"}, tokenizer());
  ASSERT_TRUE(grammar.ok()) << grammar.error().message();
  EXPECT_TRUE(grammar->allows(tokenizer().tokenize("a", false, false)->back()));
  EXPECT_FALSE(Grammar::create({.text = text + "r400 ::= r0 | \"a\""}, tokenizer()).ok());
}

// The replies of one request share what they may work.
TEST(Grammar, ClonesShareTheirWork) {
  const std::string text = R"(root ::= "x" (("a"?){12}){12})";
  SamplingParams params{.temperature = 0};
  params.parsed_grammar =
      std::make_shared<const Grammar>(*Grammar::create({.text = text}, tokenizer()));
  std::vector<float> logits(static_cast<size_t>(tokenizer().size()));
  logits[static_cast<size_t>(tokenizer().tokenize("x", false, false)->back())] = 1;
  Status end;
  int replies = 0;
  for (; replies < 2000 && end.ok(); ++replies) {
    Result<Sampler> reply = Sampler::create(params, tokenizer());
    end = reply ? reply->sample(logits).status() : reply.error();
    if (end.ok()) end = reply->sample(logits).status();
  }
  EXPECT_EQ(end.code(), Code::invalid_input) << end.message();
  EXPECT_GT(replies, 1);
}

// And what it does not refuse: schemas with long lists and wide repetitions are ordinary.
TEST(Grammar, LargeButPlainTextIsFollowed) {
  std::string words = "root ::= \"w0\"", many = words;
  for (int i = 1; i < 5000; ++i) many += " | \"w" + std::to_string(i) + "\"";
  for (int i = 1; i < 1000; ++i) words += " | \"w" + std::to_string(i) + "\"";
  std::string fields = "root ::= ";
  for (int i = 0; i < 200; ++i) fields += "( \"f" + std::to_string(i) + "=\" [0-9]+ \",\" )? ";
  for (const std::string& text :
       {words, many, fields + "\"!\"", std::string("root ::= [a-z]{1,255}"),
        std::string(R"(root ::= "[" ("\"" [^"]{0,64} "\"" ","?){0,20} "]")")}) {
    Result<Grammar> grammar = Grammar::create({.text = text}, tokenizer());
    ASSERT_TRUE(grammar.ok()) << text.substr(0, 60) << ": " << grammar.error().message();
    for (int i = 0; i < 40; ++i) {
      Token next = -1;
      std::vector<llama_token_data> all = whole_vocabulary();
      llama_token_data_array array{all.data(), all.size(), -1, false};
      ASSERT_NO_THROW(grammar->filter(array)) << text.substr(0, 60);
      for (const llama_token_data& one : all) {
        if (!std::isinf(one.logit) && !tokenizer().is_end(one.id)) next = one.id;
      }
      if (next < 0) break;
      ASSERT_NO_THROW(grammar->accept(next)) << text.substr(0, 60);
    }
  }
}

// A chain of rules as long as may be: followed by recursion.
TEST(Grammar, LongestChainOfRulesFitsTheStack) {
  std::string text = "root ::= r0\n";
  for (int i = 0; text.size() < 900000; ++i) {
    text += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
    if (text.size() >= 900000) text += "r" + std::to_string(i + 1) + " ::= \"a\"\n";
  }
  EXPECT_TRUE(Grammar::create({.text = text}, tokenizer()).ok());
}

}  // namespace
}  // namespace weir

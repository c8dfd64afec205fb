// A config.json gives the facts that the catalog has for the same model.
#include "model/synth_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/synth_keys.h"

namespace weir {
namespace {

using ::testing::HasSubstr;

struct ConfigCase {
  const char* id;
  const char* json;
};

void PrintTo(const ConfigCase& c, std::ostream* out) { *out << c.id; }

// What the vendors' files say, keys that synthetic models do not need left out.
const ConfigCase kCases[] = {
    {"gemma-3-4b", R"({"model_type": "gemma3",
      "architectures": ["Gemma3ForConditionalGeneration"],
      "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
      "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4,
      "head_dim": 256, "vocab_size": 262208, "sliding_window": 1024, "rope_theta": 1000000.0,
      "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
      "max_position_embeddings": 131072, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})"},
    {"gemma-2-2b", R"({"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216,
      "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
      "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096, "rope_theta": 10000.0,
      "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
      "max_position_embeddings": 8192})"},
    {"command-r7b", R"({"model_type": "cohere2", "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
      "head_dim": 128, "vocab_size": 256000, "sliding_window": 4096, "rope_theta": 50000,
      "sliding_window_pattern": 4, "logit_scale": 0.25, "max_position_embeddings": 132096})"},
    {"olmo-3-7b", R"({"model_type": "olmo3", "hidden_size": 4096, "intermediate_size": 11008,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
      "vocab_size": 100278, "sliding_window": 4096, "rope_theta": 500000,
      "max_position_embeddings": 65536, "tie_word_embeddings": false,
      "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
      "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"}})"},
    {"exaone-4-32b", R"({"model_type": "exaone4", "hidden_size": 5120, "intermediate_size": 27392,
      "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
      "head_dim": 128, "vocab_size": 102400, "sliding_window": 4096, "rope_theta": 1000000,
      "sliding_window_pattern": "LLLG", "max_position_embeddings": 131072,
      "tie_word_embeddings": false, "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0,
      "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}})"},
    {"llama-3.1-8b", R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
      "vocab_size": 128256, "rope_theta": 500000.0, "max_position_embeddings": 131072,
      "tie_word_embeddings": false, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}})"},
    {"mistral-7b-v0.1", R"({"model_type": "mistral", "hidden_size": 4096,
      "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 8, "vocab_size": 32000, "rope_theta": 10000.0, "sliding_window": 4096,
      "max_position_embeddings": 32768, "tie_word_embeddings": false})"},
    {"ministral-3-8b", R"({"model_type": "mistral3", "text_config": {"model_type": "ministral3",
      "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
      "sliding_window": null, "max_position_embeddings": 262144, "rope_parameters": {
      "beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384,
      "rope_theta": 1000000.0, "rope_type": "yarn"}}})"},
    {"phi-3-mini-4k", R"({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
      "vocab_size": 32064, "rope_theta": 10000.0, "rope_scaling": null, "sliding_window": 2047,
      "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
      "tie_word_embeddings": false})"},
    {"qwen3-8b", R"({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
      "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
      "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000, "use_sliding_window": false,
      "sliding_window": null, "max_window_layers": 36, "rope_scaling": null,
      "max_position_embeddings": 40960, "tie_word_embeddings": false})"},
};

void expect_same_kind(const std::optional<LayerKindFacts>& a,
                      const std::optional<LayerKindFacts>& b) {
  ASSERT_EQ(a.has_value(), b.has_value());
  if (!a) return;
  EXPECT_EQ(a->n_head, b->n_head);
  EXPECT_EQ(a->n_head_kv, b->n_head_kv);
  EXPECT_EQ(a->head_dim_k, b->head_dim_k);
  EXPECT_EQ(a->head_dim_v, b->head_dim_v);
  EXPECT_EQ(a->rope_dims, b->rope_dims);
  EXPECT_EQ(a->rope_theta, b->rope_theta);
}

class SynthConfig : public ::testing::TestWithParam<ConfigCase> {};

TEST_P(SynthConfig, GivesTheFactsOfTheCatalog) {
  Result<ModelFacts> facts = facts_from_hf_config(GetParam().json);
  ASSERT_TRUE(facts.ok()) << facts.error().message();
  const ModelFacts& listed = **find_builtin(GetParam().id);
  EXPECT_EQ(facts->gguf_arch, listed.gguf_arch);
  EXPECT_EQ(facts->n_layers, listed.n_layers);
  EXPECT_EQ(facts->n_embd, listed.n_embd);
  EXPECT_EQ(facts->n_ff, listed.n_ff);
  EXPECT_EQ(facts->n_vocab, listed.n_vocab);
  EXPECT_EQ(facts->max_context, listed.max_context);
  EXPECT_EQ(facts->window, listed.window);
  EXPECT_EQ(facts->global_layers, listed.global_layers);
  EXPECT_EQ(facts->kv_source, listed.kv_source);
  EXPECT_EQ(facts->tied_embeddings, listed.tied_embeddings.value_or(false));
  EXPECT_EQ(facts->attn_softcap, listed.attn_softcap);
  EXPECT_EQ(facts->final_softcap, listed.final_softcap);
  EXPECT_EQ(facts->logit_scale, listed.logit_scale);
  expect_same_kind(facts->global, listed.global);
  expect_same_kind(facts->local, listed.local);

  const SynthRopeScaling a = parse_rope_scaling(facts->rope_scaling);
  const SynthRopeScaling b = parse_rope_scaling(listed.rope_scaling);
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.factor, b.factor);
  EXPECT_EQ(a.original_context, b.original_context);
  EXPECT_EQ(a.beta_fast, b.beta_fast);
  EXPECT_EQ(a.beta_slow, b.beta_slow);
  EXPECT_EQ(a.low_freq_factor, b.low_freq_factor);
  EXPECT_EQ(a.high_freq_factor, b.high_freq_factor);
}

INSTANTIATE_TEST_SUITE_P(Vendors, SynthConfig, ::testing::ValuesIn(kCases), [](const auto& test) {
  std::string name = test.param.id;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

// Phi-3 for long contexts: two sets of factors, of which the file's numbers do not matter.
TEST(SynthConfig, LongRopeScalesToTheWholeContext) {
  Result<ModelFacts> facts = facts_from_hf_config(R"({"model_type": "phi3", "hidden_size": 3072,
      "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 24,
      "num_key_value_heads": 8, "vocab_size": 200064, "rope_theta": 10000.0,
      "partial_rotary_factor": 0.75, "sliding_window": 262144, "max_position_embeddings": 131072,
      "original_max_position_embeddings": 4096, "tie_word_embeddings": true,
      "rope_scaling": {"type": "longrope", "long_factor": [1, 2], "short_factor": [1, 1]}})");
  ASSERT_TRUE(facts.ok()) << facts.error().message();
  const SynthRopeScaling scaling = parse_rope_scaling(facts->rope_scaling);
  EXPECT_EQ(scaling.type, "longrope");
  EXPECT_EQ(scaling.factor, 32);
  EXPECT_EQ(scaling.original_context, 4096);
  EXPECT_EQ((facts->local ? facts->local : facts->global)->rope_dims, 96);
}

TEST(SynthConfig, AMissingWidthIsNamed) {
  EXPECT_THAT(facts_from_hf_config(R"({"model_type": "gemma3_text", "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512})")
                  .status()
                  .message(),
              HasSubstr("hidden_size"));
}

}  // namespace
}  // namespace weir

#include "geometry/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "geometry/builtin.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string config(const std::string& id) {
  return file(WEIR_SOURCE_DIR "/tests/data/config/" + id + ".json");
}

// A small config of four layers with the keys given on top.
std::string small(const std::string& model_type, const std::string& more) {
  return R"({"model_type": ")" + model_type +
         R"(", "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 32, "hidden_size": 128)" +
         (more.empty() ? "" : ", " + more) + "}";
}

std::vector<int> globals(const Result<KvGeometry>& g) {
  std::vector<int> out;
  if (!g) return {-1};
  for (const KvLayer& l : g->layers) {
    if (l.retention.kind == LayerKind::global) out.push_back(l.index);
  }
  return out;
}

std::string error_of(const std::string& json) {
  const Result<KvGeometry> g = geometry_from_hf_config(json);
  if (g) return "no error";
  EXPECT_EQ(g.error().message().find('\n'), std::string::npos);
  return g.error().message();
}

TEST(HfConfig, EveryVerifiedModelOfTheList) {
  for (const ModelFacts& m : builtin_models()) {
    if (!m.verified) continue;
    const Result<KvGeometry> g = geometry_from_hf_config(config(m.id));
    ASSERT_TRUE(g.ok()) << m.id << ": " << g.error().message();
    const KvGeometry expected = geometry_of(m);
    EXPECT_EQ(g->layers, expected.layers) << m.id;
    EXPECT_EQ(g->arch, expected.arch) << m.id;
    EXPECT_EQ(g->max_context, expected.max_context) << m.id;
    EXPECT_THAT(g->notes, IsEmpty()) << m.id;
  }
}

TEST(HfConfig, UnknownTypeUsesThePatternInTheFile) {
  const std::string types =
      R"("sliding_window": 8, "layer_types": ["full_attention", "sliding_attention",
         "sliding_attention", "full_attention"])";
  const Result<KvGeometry> g = geometry_from_hf_config(small("new", types));
  EXPECT_THAT(globals(g), ElementsAre(0, 3));
  EXPECT_EQ(g->pattern, PatternSource::file);
  EXPECT_THAT(globals(geometry_from_hf_config(
                  small("new", R"("sliding_window": 8, "sliding_window_pattern": 2)"))),
              ElementsAre(1, 3));
  EXPECT_THAT(globals(geometry_from_hf_config(
                  small("new", R"("sliding_window": 8, "hybrid_layer_pattern": [1, 0, 1, 1])"))),
              ElementsAre(1));
}

TEST(HfConfig, UnknownTypeWithoutPatternIsAllGlobalAndSaysSo) {
  const Result<KvGeometry> g = geometry_from_hf_config(small("new", R"("sliding_window": 8)"));
  EXPECT_THAT(globals(g), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(g->pattern, PatternSource::assumed);
  ASSERT_EQ(g->notes.size(), 1u);
  EXPECT_THAT(g->notes[0], HasSubstr("'new'"));
}

// Field case 21f.
TEST(HfConfig, AWindowThatIsSwitchedOffCostsTheFullContext) {
  for (const char* off : {R"("sliding_window": null)", R"("sliding_window": 0)",
                          R"("sliding_window": 8, "use_sliding_window": false)"}) {
    for (const char* type : {"mistral", "gemma2", "qwen2", "exaone4", "laguna"}) {
      EXPECT_THAT(globals(geometry_from_hf_config(small(type, off))), ElementsAre(0, 1, 2, 3))
          << type << off;
    }
  }
  EXPECT_THAT(globals(geometry_from_hf_config(small("llama4", R"("attention_chunk_size": null)"))),
              ElementsAre(0, 1, 2, 3));
}

TEST(HfConfig, QwenWindowsStartAtALayer) {
  const std::string on = R"("sliding_window": 8, "max_window_layers": 3, "use_sliding_window": )";
  EXPECT_THAT(globals(geometry_from_hf_config(small("qwen2", on + "true"))), ElementsAre(0, 1, 2));
  EXPECT_THAT(globals(geometry_from_hf_config(small("qwen2", on + "false"))),
              ElementsAre(0, 1, 2, 3));
}

TEST(HfConfig, TheLibrarysDefaultsAreUsedAndTheWindowNamed) {
  const Result<KvGeometry> g = geometry_from_hf_config(small("gemma2", ""));
  EXPECT_EQ(g->layers[0].retention.window, 4096);
  ASSERT_EQ(g->notes.size(), 1u);
  EXPECT_THAT(g->notes[0], HasSubstr("4096"));
  // Gemma 4 forces its last layer to be global.
  EXPECT_THAT(globals(geometry_from_hf_config(small("gemma4", ""))), ElementsAre(3));
}

TEST(HfConfig, LettersNameThePattern) {
  EXPECT_THAT(globals(geometry_from_hf_config(
                  small("exaone4", R"("sliding_window": 8, "sliding_window_pattern": "LG")"))),
              ElementsAre(1, 3));
  EXPECT_THAT(error_of(small("exaone4", R"("sliding_window": 8, "sliding_window_pattern": "x")")),
              HasSubstr("sliding_window_pattern"));
}

TEST(HfConfig, RecurrentLayersHaveNoKv) {
  const Result<KvGeometry> g = geometry_from_hf_config(
      small("new", R"("layer_types": ["linear_attention", "full_attention", "mamba", "odd"])"));
  ASSERT_TRUE(g.ok());
  EXPECT_EQ(g->layers[0].n_kv_heads, 0);
  EXPECT_EQ(g->layers[1].n_kv_heads, 2);
  EXPECT_EQ(g->layers[2].n_kv_heads, 0);
  EXPECT_EQ(g->layers[3].n_kv_heads, 2);
  EXPECT_EQ(g->notes.size(), 2u);
}

TEST(HfConfig, FindsTheTextModelInside) {
  const std::string text = small("llama", "");
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    const std::string json =
        R"({"model_type": "outer", ")" + std::string(key) + "\": " + text + "}";
    EXPECT_EQ(geometry_from_hf_config(json)->arch, "llama") << key;
  }
  const std::string omni = R"({"thinker_config": {"text_config": )" + text + "}}";
  EXPECT_EQ(geometry_from_hf_config(omni)->layers.size(), 4u);
}

TEST(HfConfig, WhatIsWrongIsNamedInOneLine) {
  EXPECT_THAT(error_of(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{\"a\": \"\xff\"}"), HasSubstr("at byte"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("not an object"));
  EXPECT_THAT(error_of("{\"a\": 1e999}"), HasSubstr("out of range"));
  EXPECT_THAT(error_of("{}"), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_of("{\"a\":" + std::string(100000, '[')), HasSubstr("nested"));
  EXPECT_THAT(error_of(R"({"num_hidden_layers": "many\nlines"})"), HasSubstr("\"many\\nlines\""));
  EXPECT_THAT(error_of(R"({"num_hidden_layers": 99999999999999999999})"),
              HasSubstr("instead of an integer"));
  EXPECT_THAT(error_of(R"({"num_hidden_layers": 1.5})"), HasSubstr("1.5 instead of an integer"));
  EXPECT_THAT(error_of(R"({"num_hidden_layers": 2})"), HasSubstr("num_attention_heads"));
  EXPECT_THAT(error_of(small("new", R"("layer_types": ["full_attention"])")), HasSubstr("1 of 4"));
  EXPECT_THAT(error_of(small("new", R"("layer_types": 3)")), HasSubstr("array of strings"));
  EXPECT_THAT(error_of(small("new", R"("layer_types": ["sliding_attention", "sliding_attention",
                             "sliding_attention", "sliding_attention"])")),
              HasSubstr("no 'sliding_window'"));
  EXPECT_THAT(error_of(small("gemma2", R"("sliding_window": -4)")), HasSubstr("-4"));
  EXPECT_THAT(error_of(small("smallthinker", R"("sliding_window_size": 8,
                             "sliding_window_layout": [1])")),
              HasSubstr("sliding_window_layout"));
  EXPECT_THAT(error_of(small("deepseek_v3", R"("kv_lora_rank": 512)")), HasSubstr("MLA"));
  EXPECT_THAT(error_of(small("t5", R"("is_encoder_decoder": true)")), HasSubstr("encoder"));
}

TEST(HfConfig, EveryTruncationAndChangedByteEndsInAValueOrOneLine) {
  const std::string good = config("gemma-4-26b-a4b");
  for (size_t n = 0; n + 2 < good.size(); ++n) error_of(good.substr(0, n));
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char c : {'\0', '"', '{', '[', '9', '-', ',', '\xff'}) {
      std::string bytes = good;
      bytes[at] = c;
      error_of(bytes);
    }
  }
}

}  // namespace
}  // namespace weir

#include "model/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "geometry/gguf_geometry.h"
#include "llama.h"
#include "model/model.h"
#include "model/random_tiles.h"
#include "model/synth_config.h"
#include "model/synth_vocab.h"
#include "model/testing/small_model.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using testing::small_facts;
using testing::small_model;
using testing::TemporaryFolder;

TEST(Synth, GeometryOfTheFileIsTheBuiltInOne) {
  TemporaryFolder folder;
  for (const char* id :
       {"gemma-3-270m", "gemma-3-1b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b"}) {
    ModelFacts facts = **find_builtin(id);
    // What the KV does not depend on may be small.
    facts.n_ff = facts.n_embd = 32;
    facts.n_vocab = 400;
    Result<GgufFile> file = GgufFile::open(small_model(folder, "q4_0", facts));
    ASSERT_TRUE(file.ok()) << file.error().message();
    Result<KvGeometry> read = geometry_from_gguf(*file);
    ASSERT_TRUE(read.ok()) << read.error().message();
    const KvGeometry builtin = *builtin_geometry(id);
    EXPECT_EQ(read->layers, builtin.layers) << id;
    EXPECT_EQ(read->max_context, builtin.max_context) << id;
    EXPECT_EQ(read->arch, builtin.arch) << id;
  }
}

TEST(Synth, FewerLayersKeepThePattern) {
  TemporaryFolder folder;
  SynthOptions options;
  options.n_layers = 5;
  const std::string path = folder.file("five.gguf");
  ASSERT_TRUE(synthesize(small_facts(), options, path).ok());
  Result<KvGeometry> read = geometry_from_gguf(*GgufFile::open(path));
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->layers.size(), 5u);
  for (const KvLayer& layer : read->layers) EXPECT_EQ(layer.retention.kind, LayerKind::sliding);
}

TEST(Synth, WeightTypesLoad) {
  TemporaryFolder folder;
  ModelFacts facts = small_facts();
  facts.n_ff = facts.n_embd = 256;
  for (const char* type : {"f32", "f16", "bf16", "q8_0", "q5_0", "q4_0", "q4_1", "q4_K", "q6_K",
                           "iq4_nl", "mxfp4", "tq2_0"}) {
    Result<std::unique_ptr<Model>> model = Model::load(small_model(folder, type, facts), {});
    EXPECT_TRUE(model.ok()) << model.status().message();
  }
}

TEST(Synth, RowsThatDoNotFitATypeFallBackWithANote) {
  TemporaryFolder folder;
  SynthOptions options;
  options.weights = "Q4_K";
  Result<SynthSummary> summary = synthesize(small_facts(), options, folder.file("k.gguf"));
  ASSERT_TRUE(summary.ok());
  ASSERT_EQ(summary->notes.size(), 1u);
  EXPECT_THAT(summary->notes[0], HasSubstr("q5_0"));
  EXPECT_TRUE(Model::load(folder.file("k.gguf"), {}).ok());
}

TEST(Synth, TheSameSeedWritesTheSameFile) {
  TemporaryFolder folder;
  SynthOptions options;
  ASSERT_TRUE(synthesize(small_facts(), options, folder.file("a")).ok());
  ASSERT_TRUE(synthesize(small_facts(), options, folder.file("b")).ok());
  options.seed = 2;
  ASSERT_TRUE(synthesize(small_facts(), options, folder.file("c")).ok());
  EXPECT_EQ(testing::read_file(folder.file("a")), testing::read_file(folder.file("b")));
  EXPECT_NE(testing::read_file(folder.file("a")), testing::read_file(folder.file("c")));
}

TEST(Synth, NoTwoRowsOfATableAreEqual) {
  for (ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_F16, GGML_TYPE_Q4_K}) {
    RandomTiles tiles(1);
    constexpr int64_t kRows = 50'000, kLength = 1024;
    const size_t row = ggml_row_size(type, kLength);
    std::vector<std::byte> bytes(row * kRows);
    tiles.fill(type, 1.0f, kLength / ggml_blck_size(type), bytes);
    std::set<std::string_view> rows;
    for (size_t r = 0; r < kRows; ++r)
      rows.emplace(reinterpret_cast<const char*>(bytes.data()) + r * row, row);
    EXPECT_EQ(rows.size(), static_cast<size_t>(kRows)) << ggml_type_name(type);
  }
}

TEST(Synth, TheVocabularyWritesAnyText) {
  TemporaryFolder folder;
  Result<std::unique_ptr<Model>> model = Model::load(small_model(folder), {});
  ASSERT_TRUE(model.ok());
  const llama_vocab* vocab = (*model)->vocab();
  const std::string text = "Hello, \xc3\xbc\xe2\x82\xac world!\n\t{42}";
  std::vector<llama_token> tokens(256);
  const int n = llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                               256, true, false);
  ASSERT_GT(n, 1);
  EXPECT_EQ(tokens[0], kSynthBos);
  std::string back(256, '\0');
  back.resize(static_cast<size_t>(
      llama_detokenize(vocab, tokens.data(), n, back.data(), 256, true, false)));
  EXPECT_EQ(back, text);
  EXPECT_TRUE(llama_vocab_is_eog(vocab, kSynthTurnEnd));
  EXPECT_NE(llama_model_chat_template((*model)->vocab_model(), nullptr), nullptr);
}

TEST(Synth, AConfigGivesTheSameFactsAsTheBuiltInList) {
  Result<ModelFacts> facts = facts_from_hf_config(R"({
    "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
      "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4,
      "head_dim": 256, "vocab_size": 262208, "sliding_window": 1024, "rope_theta": 1000000.0,
      "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
      "max_position_embeddings": 131072, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})");
  ASSERT_TRUE(facts.ok()) << facts.error().message();
  facts->n_ff = facts->n_embd = 32;
  facts->n_vocab = 400;
  TemporaryFolder folder;
  Result<KvGeometry> read = geometry_from_gguf(*GgufFile::open(small_model(folder, "f16", *facts)));
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->layers, builtin_geometry("gemma-3-4b")->layers);
  EXPECT_EQ(facts->rope_scaling.substr(0, 15), "linear factor=8");

  EXPECT_THAT(facts_from_hf_config(R"({"model_type": "gemma3_text", "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512})")
                  .status()
                  .message(),
              HasSubstr("hidden_size"));
}

TEST(Synth, RefusesWithOneLine) {
  TemporaryFolder folder;
  const std::string path = folder.file("never.gguf");
  Result<SynthSummary> summary = synthesize(**find_builtin("gpt-oss-20b"), {}, path);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code(), Code::unsupported);
  EXPECT_THAT(summary.error().message(), HasSubstr("gemma3"));

  SynthOptions options;
  options.weights = "q9_0";
  EXPECT_EQ(synthesize(small_facts(), options, path).status().code(), Code::invalid_input);
  options = {};
  options.n_layers = 8;
  EXPECT_EQ(synthesize(small_facts(), options, path).status().code(), Code::invalid_input);
  options = {};
  options.n_vocab = 100;
  EXPECT_EQ(synthesize(small_facts(), options, path).status().code(), Code::invalid_input);
  EXPECT_EQ(synthesize(small_facts(), {}, folder.file("no/such/folder")).status().code(),
            Code::io_error);
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace weir

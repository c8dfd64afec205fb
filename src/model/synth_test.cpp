#include "model/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "geometry/gguf_geometry.h"
#include "llama.h"
#include "model/families/family.h"
#include "model/model.h"
#include "model/random_tiles.h"
#include "model/synth_vocab.h"
#include "model/testing/small_family.h"
#include "model/testing/small_model.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using testing::small_facts;
using testing::small_model;
using testing::TemporaryFolder;

TEST(Synth, GeometryOfTheFileIsTheBuiltInOne) {
  TemporaryFolder folder;
  for (ModelFacts facts : builtin_models()) {
    if (!find_family(facts.gguf_arch)) continue;
    SCOPED_TRACE(facts.id);
    // What the KV does not depend on may be small.
    facts.n_ff = facts.n_embd = 32;
    if (facts.n_expert > 0) {
      facts.n_expert = facts.n_expert_used = 2;
      facts.n_ff_exp = 32;
    }
    facts.n_vocab = 400;
    Result<GgufFile> file = GgufFile::open(small_model(folder, "q4_0", facts));
    ASSERT_TRUE(file.ok()) << file.error().message();
    Result<KvGeometry> read = geometry_from_gguf(*file);
    ASSERT_TRUE(read.ok()) << read.error().message();
    const KvGeometry builtin = *builtin_geometry(facts.id);
    EXPECT_EQ(read->layers, builtin.layers);
    EXPECT_EQ(read->max_context, builtin.max_context);
    EXPECT_EQ(read->arch, builtin.arch);
  }
}

// A model cut short keeps its windows, and loads.
TEST(Synth, TheFirstLayersOfEveryModelLoad) {
  TemporaryFolder folder;
  for (const ModelFacts& whole : builtin_models()) {
    if (!find_family(whole.gguf_arch)) continue;
    SCOPED_TRACE(whole.id);
    const ModelFacts facts = small_family(whole.id, whole.n_layers);
    SynthOptions options;
    options.n_layers = 5;
    options.n_vocab = 400;
    const std::string path = folder.file("five.gguf");
    Result<SynthSummary> summary = synthesize(facts, options, path);
    ASSERT_TRUE(summary.ok()) << summary.error().message();
    Result<std::unique_ptr<Model>> model = Model::load(path, {});
    ASSERT_TRUE(model.ok()) << model.error().message();
    ASSERT_EQ((*model)->geometry().layers.size(), 5u);
    for (const KvLayer& layer : (*model)->geometry().layers)
      EXPECT_EQ(layer.retention.kind == LayerKind::global, facts.is_global(layer.index));
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

TEST(Synth, RefusesWithOneLine) {
  TemporaryFolder folder;
  const std::string path = folder.file("never.gguf");
  ModelFacts unknown = small_facts();
  unknown.gguf_arch = "unheard-of";
  Result<SynthSummary> summary = synthesize(unknown, {}, path);
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

#include "geometry/gguf_geometry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "geometry/testing/gguf_bytes.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<KvGeometry> read(const GgufBytes& g) {
  const std::string bytes = g.bytes();
  const Result<GgufFile> file = GgufFile::parse(as_bytes_of(bytes));
  if (!file) return file.error();
  return geometry_from_gguf(*file);
}

GgufBytes model(const std::string& arch, uint32_t layers, uint32_t heads = 8, uint32_t dim = 64) {
  const std::string a = arch + ".";
  GgufBytes g;
  g.string("general.architecture", arch).u32(a + "block_count", layers);
  g.u32(a + "attention.head_count", heads).u32(a + "embedding_length", heads * dim);
  return g;
}

std::vector<int> globals(const KvGeometry& g) {
  std::vector<int> out;
  for (const KvLayer& l : g.layers) {
    if (l.retention.kind == LayerKind::global) out.push_back(l.index);
  }
  return out;
}

TEST(GgufGeometry, EveryVerifiedModelOfTheList) {
  for (const ModelFacts& m : builtin_models()) {
    // These files carry no window: Mistral 7B v0.1 and Ministral 8B run all-global.
    const bool loses_window = m.gguf_arch == "llama";
    if (!m.verified) continue;
    const Result<KvGeometry> g = read(gguf_like(m));
    ASSERT_TRUE(g.ok()) << m.id << ": " << g.error().message();
    KvGeometry expected = geometry_of(m);
    if (loses_window) {
      for (KvLayer& l : expected.layers) l.retention = {};
    }
    EXPECT_EQ(g->layers, expected.layers) << m.id;
    EXPECT_EQ(g->max_context, m.max_context) << m.id;
    EXPECT_EQ(g->arch, m.gguf_arch);
    EXPECT_EQ(g->name, m.name);
    EXPECT_TRUE(g->notes.empty()) << m.id;
  }
}

// The vendors' code looks back a window in every layer, unless layers are named.
TEST(GgufGeometry, MistralsAndPhisWindowIsThatOfEveryLayer) {
  for (const std::string arch : {"llama", "phi3"}) {
    GgufBytes g = model(arch, 4);
    g.u32(arch + ".context_length", 4096).u32(arch + ".attention.sliding_window", 2047);
    const Result<KvGeometry> all = read(g);
    ASSERT_TRUE(all.ok()) << all.error().message();
    EXPECT_EQ(all->layers[3].retention, (Retention{LayerKind::sliding, 2047})) << arch;
    EXPECT_EQ(all->pattern, PatternSource::architecture);
    g.bools(arch + ".attention.sliding_window_pattern", {false, true, true, true});
    EXPECT_THAT(globals(*read(g)), ElementsAre(0)) << arch;

    GgufBytes longer = model(arch, 4);
    longer.u32(arch + ".context_length", 131072);
    longer.u32(arch + ".attention.sliding_window", 262144);
    EXPECT_EQ(globals(*read(longer)).size(), 4u) << arch;
  }
}

// Field case 21a: hybrid models have layers without attention, written as 0 KV heads.
TEST(GgufGeometry, PerLayerHeadCounts) {
  GgufBytes g = model("lfm2", 16);
  g.i32s("lfm2.attention.head_count_kv", {0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0});
  const Result<KvGeometry> geometry = read(g);
  ASSERT_TRUE(geometry.ok()) << geometry.error().message();
  int64_t elements = 0;
  for (const KvLayer& l : geometry->layers) elements += l.n_kv_heads * (l.k_dim + l.v_dim);
  EXPECT_EQ(elements * 2 * 32768, 384 * kMiB);
  EXPECT_EQ(globals(*geometry).size(), 16u);
}

// Field case 21b.
TEST(GgufGeometry, UnknownArchitectureUsesThePatternInTheFile) {
  GgufBytes g = model("newmodel", 4);
  g.u32("newmodel.attention.sliding_window", 8);
  g.bools("newmodel.attention.sliding_window_pattern", {false, true, true, false});
  const Result<KvGeometry> geometry = read(g);
  EXPECT_THAT(globals(*geometry), ElementsAre(0, 3));
  EXPECT_EQ(geometry->pattern, PatternSource::file);
  EXPECT_EQ(geometry->layers[1].retention, (Retention{LayerKind::sliding, 8}));

  GgufBytes scalar = model("newmodel", 6);
  scalar.u32("newmodel.attention.sliding_window", 8);
  scalar.u32("newmodel.attention.sliding_window_pattern", 3);
  EXPECT_THAT(globals(*read(scalar)), ElementsAre(2, 5));

  GgufBytes no_window = model("newmodel", 2);
  no_window.bools("newmodel.attention.sliding_window_pattern", {false, true});
  EXPECT_THAT(read(no_window).error().message(), HasSubstr("sliding_window' is missing"));
}

// Field case 21c.
TEST(GgufGeometry, UnknownArchitectureWithoutPatternIsAllGlobalAndSaysSo) {
  GgufBytes g = model("newmodel", 3);
  g.u32("newmodel.attention.sliding_window", 8);
  const Result<KvGeometry> geometry = read(g);
  EXPECT_THAT(globals(*geometry), ElementsAre(0, 1, 2));
  EXPECT_EQ(geometry->pattern, PatternSource::assumed);
  ASSERT_EQ(geometry->notes.size(), 1u);
  EXPECT_THAT(geometry->notes[0], HasSubstr("every layer is counted as global"));
  EXPECT_THAT(geometry->notes[0], HasSubstr("newmodel"));
}

// Field case 21e: 35 layers of which 15 borrow; also without the key, by the architecture's rule.
TEST(GgufGeometry, BorrowingLayersOwnNothing) {
  for (const bool has_key : {true, false}) {
    GgufBytes g = model("gemma3n", 35, 8, 256);
    g.u32("gemma3n.attention.sliding_window", 512);
    if (has_key) g.u32("gemma3n.attention.shared_kv_layers", 15);
    const Result<KvGeometry> geometry = read(g);
    int owners = 0;
    for (const KvLayer& l : geometry->layers) owners += l.owns_kv();
    EXPECT_EQ(owners, 20);
    EXPECT_EQ(geometry->layers[34].source, 19);
    EXPECT_EQ(geometry->layers[33].source, 18);
  }
}

// Field case 21f.
TEST(GgufGeometry, AWindowThatIsSwitchedOffCostsTheFullContext) {
  for (const std::string arch : {"llama4", "gemma3", "olmo2", "laguna", "smallthinker"}) {
    GgufBytes g = model(arch, 8);
    g.u32(arch + ".attention.sliding_window", 0);
    const Result<KvGeometry> geometry = read(g);
    EXPECT_EQ(globals(*geometry).size(), 8u) << arch;
    EXPECT_FALSE(geometry->notes.empty()) << arch;
  }
  EXPECT_EQ(globals(*read(model("gemma3", 12))).size(), 12u);
}

TEST(GgufGeometry, Llama4IsChunkedAlthoughTheFileDoesNotSay) {
  const Result<KvGeometry> geometry = read(model("llama4", 8));
  EXPECT_THAT(globals(*geometry), ElementsAre(3, 7));
  EXPECT_EQ(geometry->layers[0].retention, (Retention{LayerKind::chunked, 8192}));
}

// Field case 21g.
TEST(GgufGeometry, EachKindHasItsOwnHeadsAndSizes) {
  GgufBytes g = model("gemma4", 3);
  g.i32s("gemma4.attention.head_count_kv", {8, 8, 2});
  g.u32("gemma4.attention.key_length", 512).u32("gemma4.attention.value_length", 512);
  g.u32("gemma4.attention.key_length_swa", 256).u32("gemma4.attention.value_length_swa", 256);
  g.u32("gemma4.attention.sliding_window", 1024);
  g.bools("gemma4.attention.sliding_window_pattern", {true, true, false});
  const Result<KvGeometry> geometry = read(g);
  EXPECT_EQ(geometry->layers[0].n_kv_heads * geometry->layers[0].k_dim, 2048);
  EXPECT_EQ(geometry->layers[2].n_kv_heads * geometry->layers[2].k_dim, 1024);
}

TEST(GgufGeometry, AnArrayWinsOverTheArchitecturesPeriod) {
  GgufBytes g = model("gemma3", 3);
  g.u32("gemma3.attention.sliding_window", 8);
  g.bools("gemma3.attention.sliding_window_pattern", {false, true, false});
  EXPECT_THAT(globals(*read(g)), ElementsAre(0, 2));
}

TEST(GgufGeometry, ExaoneHasAWindowOnlyWith64Layers) {
  EXPECT_EQ(globals(*read(model("exaone4", 64))).size(), 16u);
  GgufBytes small = model("exaone4", 30);
  small.u32("exaone4.attention.sliding_window", 4096);
  EXPECT_EQ(globals(*read(small)).size(), 30u);
  GgufBytes named = model("exaone4", 4);
  named.bools("exaone4.attention.sliding_window_pattern", {true, true, true, false});
  EXPECT_THAT(globals(*read(named)), ElementsAre(3));
}

TEST(GgufGeometry, DraftLayersAreLeftOut) {
  GgufBytes g = model("step35", 4);
  g.u32("step35.nextn_predict_layers", 1).u32("step35.attention.sliding_window", 512);
  g.bools("step35.attention.sliding_window_pattern", {false, true, true, true});
  EXPECT_EQ(read(g)->layers.size(), 3u);
}

TEST(GgufGeometry, ContradictionsNameTheKey) {
  const auto message = [](const GgufBytes& g) {
    const Result<KvGeometry> r = read(g);
    return r.ok() ? "no error" : r.error().message();
  };
  EXPECT_THAT(message(GgufBytes()), HasSubstr("general.architecture"));
  EXPECT_THAT(message(model("llama", 0)), HasSubstr("block_count"));
  EXPECT_THAT(message(model("llama", 0xffffffff)), HasSubstr("block_count"));
  EXPECT_THAT(message(model("llama", 8000)), HasSubstr("8000 layers"));
  EXPECT_THAT(message(model("llama", 2, 0)), HasSubstr("no layer"));
  EXPECT_THAT(message(model("gemma4", 2)), HasSubstr("sliding_window"));
  GgufBytes no_pattern = model("gemma4", 2);
  no_pattern.u32("gemma4.attention.sliding_window", 8);
  EXPECT_THAT(message(no_pattern), HasSubstr("sliding_window_pattern"));
  GgufBytes wide = model("llama", 2);
  wide.u32("llama.attention.key_length", 0x7fffffff);
  EXPECT_THAT(message(wide), HasSubstr("K row"));
  GgufBytes many = model("llama", 4000, 4096, 128);
  EXPECT_THAT(message(many), HasSubstr("elements"));
  GgufBytes few = model("llama", 3);
  few.i32s("llama.attention.head_count_kv", {1, 2});
  EXPECT_THAT(message(few), HasSubstr("'llama.attention.head_count_kv' has 2 elements"));
  GgufBytes sharing = model("gemma3n", 3);
  sharing.u32("gemma3n.attention.sliding_window", 8).u32("gemma3n.attention.shared_kv_layers", 3);
  EXPECT_THAT(message(sharing), HasSubstr("share"));
  EXPECT_THAT(message(model("bert", 2).boolean("bert.attention.causal", false)),
              HasSubstr("encoder"));
}

TEST(GgufGeometry, ReadsTheTinyModel) {
  const Result<GgufFile> file =
      GgufFile::open(WEIR_SOURCE_DIR "/models/weir-tiny/weir-tiny-f16.gguf");
  ASSERT_TRUE(file.ok()) << file.error().message();
  const Result<KvGeometry> geometry = geometry_from_gguf(*file);
  ASSERT_TRUE(geometry.ok()) << geometry.error().message();
  EXPECT_GT(globals(*geometry).size(), 0u);
  EXPECT_LT(globals(*geometry).size(), geometry->layers.size());
}

}  // namespace
}  // namespace weir

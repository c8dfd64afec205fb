#include "geometry/growth.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "geometry/builtin.h"

namespace weir {
namespace {

// K and V apart, as the golden figures count them.
KvGrowth growth(const std::string& id, KvType type = KvType::f16) {
  KvFormat format = KvFormat::uniform(type);
  format.share = false;
  return *KvGrowth::of(*builtin_geometry(id), format);
}

// Global layers of these models have one projection for K and V. What is stored once grows with the
// elements that the golden set has for it; what other engines pay stays.
TEST(Growth, KvOfOneProjectionIsStoredOnce) {
  std::ifstream file(WEIR_SOURCE_DIR "/tests/data/derived.json");
  int checked = 0;
  for (const auto& d : nlohmann::json::parse(file)) {
    const auto elements = d.find("global_elements_per_token_k_rot_plus_n");
    if (elements == d.end()) continue;
    const std::string id = d.at("id");
    for (const auto& [type, bytes] :
         {std::pair{KvType::f16, 2}, {KvType::bf16, 2}, {KvType::f32, 4}}) {
      const KvGrowth once = *KvGrowth::of(*builtin_geometry(id), KvFormat::uniform(type));
      const KvGrowth apart = growth(id, type);
      EXPECT_EQ(once.global_per_token().v, bytes * elements->get<int64_t>()) << id;
      EXPECT_EQ(once.local_per_token(), apart.local_per_token()) << id;
      EXPECT_EQ(once.uniform(32768), apart.uniform(32768)) << id;
    }
    const KvGrowth q8 = *KvGrowth::of(*builtin_geometry(id), KvFormat::uniform(KvType::q8_0));
    EXPECT_EQ(q8.global_per_token().v, elements->get<int64_t>() / 32 * 34) << id;
    // K and V of different types are stored apart.
    KvFormat mixed = KvFormat::uniform(KvType::f16);
    mixed.global_k = KvType::f32;
    EXPECT_EQ(KvGrowth::of(*builtin_geometry(id), mixed)->global_per_token().v,
              3 * growth(id).global_per_token().v / 2);
    ++checked;
  }
  EXPECT_EQ(checked, 3);
}

// Field case 20: bytes per token of one layer, and layers.
TEST(Growth, GoldenFigures) {
  const struct {
    const char* id;
    int64_t n_global, global_row, n_local, local_row;
  } golden[] = {{"gemma-3-27b", 10, 8192, 52, 8192}, {"gemma-3-12b", 8, 8192, 40, 8192},
                {"gemma-3-4b", 5, 4096, 29, 4096},   {"gemma-4-26b-a4b", 5, 4096, 25, 8192},
                {"gemma-4-12b", 8, 2048, 40, 8192},  {"gpt-oss-20b", 12, 2048, 12, 2048}};
  for (const auto& g : golden) {
    const KvGrowth k = growth(g.id);
    EXPECT_EQ(k.n_global_layers(), g.n_global) << g.id;
    EXPECT_EQ(k.global_per_token().v, g.n_global * g.global_row) << g.id;
    ASSERT_EQ(k.locals().size(), 1u);
    EXPECT_EQ(k.locals()[0].n_layers, g.n_local) << g.id;
    EXPECT_EQ(k.local_per_token().v, g.n_local * g.local_row) << g.id;
  }
}

// Another engine's number of local rows, our bytes a row.
TEST(Growth, CrossChecksWithOtherRowRules) {
  const KvGrowth gemma3 = growth("gemma-3-27b");
  EXPECT_EQ(gemma3.global(65536).v, 5120 * kMiB);
  EXPECT_EQ((3072 * gemma3.local_per_token()).v, 1248 * kMiB);
  const KvGrowth gemma4 = growth("gemma-4-26b-a4b");
  const auto gb = [&](int64_t n) {
    return static_cast<double>((gemma4.global(n) + 1536 * gemma4.local_per_token()).v) / 1e9;
  };
  EXPECT_NEAR(gb(4096), 0.398, 0.0005);
  EXPECT_NEAR(gb(8192), 0.482, 0.0005);
  EXPECT_NEAR(gb(32768), 0.986, 0.0005);
  EXPECT_NEAR(gb(131072), 2.999, 0.0005);
  const KvGrowth oss = growth("gpt-oss-20b");
  EXPECT_EQ(oss.global(131072).v, 3072 * kMiB);
  EXPECT_EQ(oss.local_bytes().v, 3 * kMiB);
}

TEST(Growth, EveryVerifiedModelEqualsTheDerivedFigures) {
  std::ifstream file(WEIR_SOURCE_DIR "/tests/data/derived.json");
  int checked = 0;
  for (const auto& d : nlohmann::json::parse(file)) {
    if (!d.at("verified").get<bool>()) continue;
    const std::string id = d.at("id");
    for (const KvType type : {KvType::f16, KvType::bf16, KvType::q8_0, KvType::q4_0}) {
      const KvGrowth k = growth(id, type);
      const std::string name = kv_type_name(type);
      EXPECT_EQ(k.global_per_token().v, d.at("global_bytes_per_token_" + name)) << id;
      EXPECT_EQ(k.local_bytes().v, d.at("local_bytes_" + name)) << id;
      const std::optional<int64_t> crossover = k.crossover();
      const auto& expected = d.at("crossover_tokens");
      ASSERT_EQ(crossover.has_value(), !expected.is_null()) << id;
      if (crossover) {
        EXPECT_EQ(*crossover, expected.get<int64_t>()) << id;
      }
    }
    const KvGrowth k = growth(id);
    int owners = k.n_global_layers();
    for (const KvGrowth::Local& l : k.locals()) owners += l.n_layers;
    EXPECT_EQ(owners, d.at("n_kv_layers")) << id;
    for (const auto& [key, value] : d.items()) {
      const std::string prefix = "resident_bytes_f16_";
      if (key.rfind(prefix, 0) != 0) continue;
      const int64_t n = std::stoll(key.substr(prefix.size()));
      EXPECT_EQ(k.resident(n).v, value.get<int64_t>()) << id << " " << n;
      EXPECT_EQ(k.uniform(n).v, d.at("uniform_bytes_f16_" + std::to_string(n))) << id;
      EXPECT_NEAR(k.ratio(n), d.at("ratio_" + std::to_string(n)).get<double>(), 1e-6) << id;
      ++checked;
    }
  }
  EXPECT_GT(checked, 80);
}

TEST(Growth, TheCrossoverIsTheFirstSuchLength) {
  for (const ModelFacts& m : builtin_models()) {
    const KvGrowth k = growth(m.id);
    const std::optional<int64_t> n = k.crossover();
    if (!n) continue;
    EXPECT_GE(k.global(*n), k.local_bytes()) << m.id;
    EXPECT_LT(k.global(*n - 1), k.local_bytes()) << m.id;
  }
}

TEST(Growth, KAndVTypesCountSeparately) {
  KvFormat format;
  format.global_k = format.local_k = KvType::q8_0;
  const KvGrowth k = *KvGrowth::of(*builtin_geometry("mimo-v2-flash"), format);
  // 9 global layers of 4 heads: 192 K elements as q8_0, 128 V elements as f16.
  EXPECT_EQ(k.global_per_token().v, 9 * 4 * (192 / 32 * 34 + 128 * 2));
}

}  // namespace
}  // namespace weir

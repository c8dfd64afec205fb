#include "plan/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/bytes.h"
#include "plan/plan_report.h"

namespace weir {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const CatalogEntry& entry_of(const std::string& id) {
  for (const CatalogEntry& entry : builtin_catalog_entries()) {
    if (entry.facts.id == id) return entry;
  }
  ADD_FAILURE() << id;
  return builtin_catalog_entries().front();
}

const ClaimCheck* claim_of(const CatalogCheck& check, const std::string& id) {
  for (const ClaimCheck& claim : check.claims) {
    if (claim.claim->id == id) return &claim;
  }
  ADD_FAILURE() << id;
  return nullptr;
}

double figure(const std::string& id, CatalogFigure f, int64_t tokens = 0, KvType type = KvType::f16,
              const CatalogAssumption& assumption = {}) {
  return *catalog_figure(entry_of(id).geometry, {.figure = f, .type = type}, tokens, assumption);
}

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Catalog, EveryEntryVerifies) {
  size_t n_claims = 0;
  for (const CatalogEntry& entry : builtin_catalog_entries()) {
    const CatalogCheck check = check_catalog_entry(entry);
    for (const CatalogDisagreement& d : check.disagreements) {
      ADD_FAILURE() << entry.facts.id << " " << d.where << ": " << d.what;
    }
    EXPECT_FALSE(entry.derived.is_null()) << entry.facts.id;
    n_claims += check.claims.size();
  }
  EXPECT_GE(builtin_catalog_entries().size(), 41u);
  EXPECT_GE(n_claims, 31u);
}

TEST(Catalog, FilesAreNamedAfterTheirModelsAndLaidOutAsShowPrintsThem) {
  size_t n = 0;
  for (const auto& file : std::filesystem::directory_iterator(WEIR_SOURCE_DIR "/catalog")) {
    const CatalogEntry& entry = entry_of(file.path().stem());
    EXPECT_EQ(catalog_file(entry), read(file.path())) << file.path();
    ++n;
  }
  EXPECT_EQ(n, builtin_catalog_entries().size());
}

// Figures of another program, from the same geometry.
TEST(Catalog, DerivedFiguresAreTheGoldenOnes) {
  size_t n_rows = 0, n_once = 0;
  for (const json& golden : json::parse(read(WEIR_SOURCE_DIR "/tests/data/derived.json"))) {
    const OrderedJson derived = derived_figures(entry_of(golden["id"]).geometry);
    EXPECT_EQ(derived["layers"]["global"], golden["n_global"]);
    EXPECT_EQ(derived["layers"]["local"], golden["n_local"]);
    EXPECT_EQ(derived["layers"]["owning_kv"], golden["n_kv_layers"]);
    EXPECT_EQ(derived["elements_per_token"]["global"], golden["global_elements_per_token"]);
    EXPECT_EQ(derived["elements_per_token"]["local"], golden["local_elements_per_token"]);
    EXPECT_EQ(derived["crossover_tokens"], golden["crossover_tokens"]) << golden["id"];
    for (const std::string type : {"f16", "q8_0", "q4_0"}) {
      const OrderedJson& codec = derived["codecs"][type];
      EXPECT_EQ(codec["global_bytes_per_token"], golden["global_bytes_per_token_" + type]);
      EXPECT_EQ(codec["local_bytes"], golden["local_bytes_" + type]);
    }
    for (const OrderedJson& row : derived["codecs"]["f16"]["contexts"]) {
      const std::string n = std::to_string(row["tokens"].get<int64_t>());
      EXPECT_EQ(row["total_bytes"], golden["resident_bytes_f16_" + n]) << golden["id"] << n;
      EXPECT_NEAR(row["ratio"].get<double>(), golden["ratio_" + n].get<double>(), 1e-9);
      ++n_rows;
    }
    if (!golden.contains("global_elements_per_token_n_only")) continue;
    EXPECT_EQ(derived["global_stored_once"]["rotated_k_and_v_elements_per_token"],
              golden["global_elements_per_token_k_rot_plus_n"]);
    EXPECT_EQ(derived["global_stored_once"]["v_elements_per_token"],
              golden["global_elements_per_token_n_only"]);
    ++n_once;
  }
  EXPECT_GT(n_rows, 100u);
  EXPECT_EQ(n_once, 3u);
}

// --- the four public claims ---------------------------------------------------------------------

TEST(CatalogClaims, Gemma3_4bHas29LocalLayersAndTakes24192BytesAToken) {
  const CatalogCheck check = check_catalog_entry(entry_of("gemma-3-4b"));
  const struct {
    const char* id;
    double claimed, computed;
  } expected[] = {{"local-layers", 28, 29},
                  {"global-layers", 6, 5},
                  {"layer-33", 1, 0},
                  {"effective-32k", 28160, 24192},
                  {"saving-32k", 4.95, 139264.0 / 24192}};
  for (const auto& e : expected) {
    const ClaimCheck* claim = claim_of(check, e.id);
    ASSERT_TRUE(claim);
    EXPECT_EQ(claim->verdict, Verdict::fails) << e.id;
    EXPECT_EQ(claim->claim->points[0].claimed, e.claimed);
    EXPECT_NEAR(claim->computed[0], e.computed, 1e-12 * e.computed) << e.id;
    EXPECT_TRUE(claim->is_explained) << e.id;  // by one more global layer
  }
}

TEST(CatalogClaims, Gemma4_26bHas20KiBOfGlobalKvAToken) {
  const CatalogCheck check = check_catalog_entry(entry_of("gemma-4-26b-a4b"));
  const struct {
    const char* id;
    Verdict verdict;
    double claimed, computed;
  } expected[] = {{"global-per-token", Verdict::fails, 40, 20},
                  {"local", Verdict::holds, 200, 200},
                  {"crossover", Verdict::fails, 5120, 10240},
                  {"total-256k", Verdict::fails, 10, 5 + 200.0 / 1024},
                  {"totals-with-micro-batch", Verdict::partly, 0.40, 0.29360128},
                  {"uniform-per-token", Verdict::partly, 210, 220}};
  for (const auto& e : expected) {
    const ClaimCheck* claim = claim_of(check, e.id);
    ASSERT_TRUE(claim);
    EXPECT_EQ(claim->verdict, e.verdict) << e.id;
    EXPECT_EQ(claim->claim->points[0].claimed, e.claimed);
    EXPECT_NEAR(claim->computed[0], e.computed, 1e-12 * e.computed) << e.id;
    EXPECT_EQ(claim->is_explained, e.verdict != Verdict::holds) << e.id;
  }
}

TEST(CatalogClaims, Gemma4_31bKeeps50WindowsAndHalfRows) {
  const CatalogCheck check = check_catalog_entry(entry_of("gemma-4-31b"));
  const ClaimCheck* by_layers = claim_of(check, "ratio-by-layers");
  const ClaimCheck* corrected = claim_of(check, "ratio-corrected");
  ASSERT_TRUE(by_layers && corrected);
  EXPECT_EQ(by_layers->verdict, Verdict::fails);
  EXPECT_EQ(corrected->verdict, Verdict::partly);
  ASSERT_EQ(by_layers->computed.size(), 8u);
  EXPECT_EQ(by_layers->computed, corrected->computed);
  for (size_t i = 0; i < 8; ++i) {
    const double n = static_cast<double>(int64_t{2048} << i);
    EXPECT_EQ(by_layers->claim->points[i].tokens, int64_t{2048} << i);
    const auto near = [](double a, double percent) { EXPECT_NEAR(a, 100 * percent, 1e-10); };
    near(by_layers->claim->points[i].claimed, (50 * 1024 + 10 * n) / (60 * n));
    near(corrected->claim->points[i].claimed, (50 * 2048 + 5 * n) / (55 * n));
    near(by_layers->computed[i], (50 * 1024 + 5 * n) / (55 * n));
  }
  EXPECT_TRUE(by_layers->is_explained && corrected->is_explained);
}

TEST(CatalogClaims, TheGemma3ReportPrints12TimesTheWindowedKv) {
  const std::pair<const char*, double> increments[] = {{"gemma-3-1b", 0.0728760320},
                                                       {"gemma-3-4b", 0.3963617280},
                                                       {"gemma-3-12b", 1.2415139840},
                                                       {"gemma-3-27b", 1.5602810880}};
  for (const auto& [id, right] : increments) {
    const CatalogCheck check = check_catalog_entry(entry_of(id));
    const ClaimCheck* claim = claim_of(check, "report-table-3");
    ASSERT_TRUE(claim);
    EXPECT_EQ(claim->verdict, Verdict::fails);
    EXPECT_NEAR(claim->computed[0], right, 1e-12) << id;
    EXPECT_EQ(claim->claim->assumes->times, 12);
    EXPECT_TRUE(claim->is_explained) << id;
  }
}

// --- an entry that is wrong ---------------------------------------------------------------------

struct Mutation {
  const char* id;
  const char* at;  // JSON pointer
  json value;
  const char* where;  // of the last disagreement
  const char* what;
  size_t n_disagreements = 1;
};

TEST(CatalogVerify, AMutationIsExactlyItsDisagreement) {
  const Mutation mutations[] = {
      {"gemma-3-4b", "/derived/codecs/f16/local_bytes", 117440512, "derived.codecs.f16.local_bytes",
       "the last layer taken for a global one"},
      {"gemma-3-4b", "/derived/codecs/q8_0/local_bytes", 64555392,
       "derived.codecs.q8_0.local_bytes", "leaves the current token out"},
      {"gemma-3-4b", "/derived/codecs/f16/contexts/1/total_bytes", 4563402752,
       "derived.codecs.f16.contexts[1].total_bytes", "local layers that keep every token"},
      {"gemma-3-4b", "/derived/codecs/f16/contexts/1/ratio", 0.5,
       "derived.codecs.f16.contexts[1].ratio", "its geometry gives 0.173713"},
      {"gemma-3-4b", "/derived/crossover_tokens", 5939, "derived.crossover_tokens", "gives 5940"},
      {"gemma-3-4b", "/derived/layers/owning_kv", 30, "derived.layers.owning_kv", "gives 34"},
      {"gemma-3-4b", "/derived/surplus", 1, "derived.surplus", "no figure of this geometry"},
      {"gemma-4-26b-a4b", "/derived/codecs/f16/global_bytes_per_token", 40960,
       "derived.codecs.f16.global_bytes_per_token", "the local layers' heads and sizes"},
      {"gemma-4-26b-a4b", "/derived/codecs/f16/global_bytes_per_token", 10240,
       "derived.codecs.f16.global_bytes_per_token", "keep K and V once, as V"},
      {"gemma-4-e2b", "/derived/codecs/f16/global_bytes_per_token", 14336,
       "derived.codecs.f16.global_bytes_per_token", "as if they had their own"},
      {"gemma-3-4b", "/claims/3/holds", true, "claim effective-32k", "recomputed it is 'fails'"},
      {"gemma-3-4b", "/claims/3/holds", "partly", "claim effective-32k", "'partly'"},
      {"gemma-3-4b", "/claims/3/recomputed", 24193, "claim effective-32k", "gives 24192"},
      {"gemma-3-4b", "/claims/3/reason", "So it is.", "claim effective-32k",
       "does not name the right figure, 24192"},
      {"gemma-3-4b", "/claims/3/value", 28161, "claim effective-32k",
       "does not give the claimed figure"},
      {"gemma-3-4b",
       "/claims/3/assumes/geometry/global_layers",
       {5, 11, 17, 23, 29},
       "claim effective-32k",
       "the last layer taken for a global one does"},
      {"gemma-4-26b-a4b", "/claims/1/holds", false, "claim local", "recomputed it is 'holds'"},
      // Without its explanation a claim that held in part holds no longer: two.
      {"gemma-4-31b", "/claims/2/assumes/local_rows", 1536, "claim ratio-corrected",
       "does not give the claimed figure; that of local layers that keep the window and a "
       "micro-batch of 1024 does",
       2},
  };
  for (const Mutation& m : mutations) {
    OrderedJson file = entry_of(m.id).json;
    file[OrderedJson::json_pointer(m.at)] = OrderedJson::parse(m.value.dump());
    const Result<CatalogEntry> entry = parse_catalog_entry(file.dump());
    ASSERT_TRUE(entry.ok()) << m.at << ": " << entry.error().message();
    const CatalogCheck check = check_catalog_entry(*entry);
    std::string all;
    for (const CatalogDisagreement& d : check.disagreements) all += d.where + ": " + d.what + "\n";
    ASSERT_EQ(check.disagreements.size(), m.n_disagreements) << m.at << "\n" << all;
    EXPECT_EQ(check.disagreements.back().where, m.where) << all;
    EXPECT_THAT(check.disagreements.back().what, HasSubstr(m.what)) << m.at;
  }
}

TEST(CatalogVerify, AnotherGeometryDisagreesEverywhere) {
  OrderedJson file = entry_of("gemma-3-4b").json;
  file["geometry"]["global_layers"] = {5, 11, 17, 23, 29, 33};
  const Result<CatalogEntry> entry = parse_catalog_entry(file.dump());
  ASSERT_TRUE(entry.ok());
  const CatalogCheck check = check_catalog_entry(*entry);
  EXPECT_GT(check.disagreements.size(), 30u);
  EXPECT_EQ(claim_of(check, "effective-32k")->verdict, Verdict::holds);
}

TEST(CatalogVerify, AnEntryNeedsOnlyItsGeometry) {
  OrderedJson file = entry_of("gemma-3-4b").json;
  for (const char* part : {"derived", "claims", "measured"}) file.erase(part);
  const Result<CatalogEntry> entry = parse_catalog_entry(file.dump());
  ASSERT_TRUE(entry.ok()) << entry.error().message();
  EXPECT_TRUE(check_catalog_entry(*entry).disagreements.empty());
  // What show prints of it is a whole entry.
  const Result<CatalogEntry> whole = parse_catalog_entry(catalog_file(*entry));
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->derived, entry_of("gemma-3-4b").derived);
}

TEST(CatalogVerify, ResidentBytesMustBeThePlannedOnes) {
  OrderedJson file = entry_of("gemma-3-1b").json;
  // 4096 tokens: 4 layers × 1 KiB of global KV each; 512 + 16 rows of 22 layers, in blocks of 16.
  const OrderedJson good = {{"tokens", 4096},
                            {"step_tokens", 512},
                            {"kv_type", "f16"},
                            {"layers", 26},
                            {"global_bytes", 4096 * 4096},
                            {"local_bytes", 512 * 22528},
                            {"resident_bytes", 4096 * 4096 + 512 * 22528},
                            {"command", "none"},
                            {"date", "2026-01-01"}};
  for (const auto& [key, n] : std::vector<std::pair<std::string, size_t>>{
           {"", 0}, {"global_bytes", 1}, {"local_bytes", 1}, {"resident_bytes", 1}}) {
    OrderedJson measured = good;
    if (!key.empty()) measured[key] = measured[key].get<int64_t>() + 1;
    file["measured"] = OrderedJson::array({measured});
    const Result<CatalogEntry> entry = parse_catalog_entry(file.dump());
    ASSERT_TRUE(entry.ok()) << entry.error().message();
    const CatalogCheck check = check_catalog_entry(*entry);
    ASSERT_EQ(check.disagreements.size(), n) << key;
    if (n > 0) {
      EXPECT_EQ(check.disagreements[0].where, "measured[0]." + key);
      EXPECT_THAT(check.disagreements[0].what, HasSubstr("planned"));
    }
  }
}

TEST(CatalogEntryFile, EachFaultIsNamed) {
  const std::tuple<const char*, json, const char*> faults[] = {
      {"/format", 2, "format is 2"},
      {"/surplus", 1, "'surplus'"},
      {"/geometry", 7, "geometry is no JSON object"},
      {"/geometry/n_layers", 0, "n_layers is 0"},
      {"/claims", 7, "claims is no list"},
      {"/claims/3/within_", 1, "'within_'"},
      {"/claims/3/figure", "bytes", "'bytes', which is no figure"},
      {"/claims/3/unit", "kB", "'kB', which is no unit"},
      {"/claims/3/kv_type", "q9", "claims[3].kv_type"},
      {"/claims/3/tokens", 0, "claims[3].tokens is 0"},
      {"/claims/3/tokens", json::array(), "claims[3].tokens"},
      {"/claims/3/tokens", {1, 2}, "1 numbers for 2 lengths"},
      {"/claims/3/value", "many", "claims[3].value is \"many\""},
      {"/claims/3/holds", "perhaps", "claims[3].holds"},
      {"/claims/3/reason", "", "claims[3].reason"},
      {"/claims/3/id", "layer-33", "two claims are called 'layer-33'"},
      {"/claims/3/assumes", 1, "claims[3].assumes is no object"},
      {"/claims/3/assumes/rows", 1, "'rows'"},
      {"/claims/3/assumes/global_stored_once", "v", "stored once"},
      {"/claims/3/assumes/geometry/global_layers", {99}, "99 does not"},
      {"/claims/3/formula", {{"local_layers", 1}}, "claims[3].formula"},
      {"/measured", {{{"tokens", 1}}}, "measured[0].step_tokens is missing"},
  };
  for (const auto& [at, value, named] : faults) {
    OrderedJson file = entry_of("gemma-3-4b").json;
    file[OrderedJson::json_pointer(at)] = OrderedJson::parse(value.dump());
    const Result<CatalogEntry> entry = parse_catalog_entry(file.dump());
    ASSERT_FALSE(entry.ok()) << at << " " << value;
    EXPECT_EQ(entry.error().code(), Code::corrupt) << at;
    EXPECT_THAT(entry.error().message(), HasSubstr(named)) << at;
  }
  for (const char* text : {"", "[]", "{", "7", "{\"format\": 1}"}) {
    EXPECT_FALSE(parse_catalog_entry(text).ok()) << text;
  }
  OrderedJson file = entry_of("gemma-3-4b").json;
  file["claims"][3].erase("tokens");
  EXPECT_THAT(parse_catalog_entry(file.dump()).error().message(), HasSubstr("number of tokens"));
}

// --- field cases --------------------------------------------------------------------------------

// Field case 20: bytes per token of one layer, and what other engines' row rules come to.
TEST(CatalogFieldCases, Case20GoldenFigures) {
  const struct {
    const char* id;
    double n_global, global_row, n_local, local_row;
  } golden[] = {{"gemma-3-27b", 10, 8192, 52, 8192}, {"gemma-3-12b", 8, 8192, 40, 8192},
                {"gemma-3-4b", 5, 4096, 29, 4096},   {"gemma-4-26b-a4b", 5, 4096, 25, 8192},
                {"gemma-4-12b", 8, 2048, 40, 8192},  {"gpt-oss-20b", 12, 2048, 12, 2048}};
  for (const auto& g : golden) {
    EXPECT_EQ(figure(g.id, CatalogFigure::global_layers), g.n_global);
    EXPECT_EQ(figure(g.id, CatalogFigure::local_layers), g.n_local);
    EXPECT_EQ(figure(g.id, CatalogFigure::global_bytes_per_token), g.n_global * g.global_row);
    EXPECT_EQ(figure(g.id, CatalogFigure::local_bytes_per_token), g.n_local * g.local_row);
  }
  const auto with_rows = [](const char* id, int64_t n, int64_t rows) {
    return figure(id, CatalogFigure::total_bytes, n, KvType::f16,
                  {.geometry = {}, .local_rows = rows});
  };
  EXPECT_EQ(with_rows("gemma-3-27b", 65536, 3072), (5120 + 1248) * kMiB);
  EXPECT_NEAR(with_rows("gemma-4-26b-a4b", 4096, 1536), 0.398e9, 0.0005e9);
  EXPECT_NEAR(with_rows("gemma-4-26b-a4b", 131072, 1536), 2.999e9, 0.0005e9);
  EXPECT_EQ(with_rows("gpt-oss-20b", 131072, 128), (3072 + 3) * kMiB);
}

// Field case 21, d e g: one token counts every owning layer; borrowed KV is not counted; each kind
// uses its own heads and sizes.
TEST(CatalogFieldCases, Case21ReadingTheGeometry) {
  for (const CatalogEntry& entry : builtin_catalog_entries()) {
    const std::string& id = entry.facts.id;
    EXPECT_EQ(figure(id, CatalogFigure::total_bytes, 1),
              figure(id, CatalogFigure::uniform_bytes_per_token));
  }
  EXPECT_EQ(entry_of("gemma-4-e2b").derived["layers"]["owning_kv"], 15);
  EXPECT_EQ(entry_of("gemma-3n-e4b").derived["layers"]["owning_kv"], 20);
  EXPECT_EQ(figure("mimo-v2-flash", CatalogFigure::global_bytes_per_token),
            9 * 4 * (192 + 128) * 2);
  EXPECT_EQ(figure("mimo-v2-flash", CatalogFigure::local_bytes_per_token),
            39 * 8 * (192 + 128) * 2);
}

// Field case 22: printed figures agree with each other, here catalog and plan.
TEST(CatalogFieldCases, Case22CatalogAndPlanAgree) {
  for (const CatalogEntry& entry : builtin_catalog_entries()) {
    for (const OrderedJson& row : entry.derived["codecs"]["q8_0"]["contexts"]) {
      PlanOptions options;
      options.formats = {KvFormat::uniform(KvType::q8_0)};
      options.contexts = {row["tokens"].get<int64_t>()};
      ModelSource source;
      source.geometry = geometry_of(entry.facts);
      for (KvLayer& layer : source.geometry.layers) layer.storage = KvStorage::separate;
      const Result<PlanReport> report = make_plan_report(std::move(source), options);
      ASSERT_TRUE(report.ok());
      EXPECT_EQ(report->main().rows[0].exact().v, row["total_bytes"].get<int64_t>());
      EXPECT_NEAR(report->main().rows[0].exact_ratio(), row["ratio"].get<double>(),
                  5.01e-7);  // six decimals
    }
  }
}

// Field case 23: what cannot be stored is refused when the entry is read, with its reason.
TEST(CatalogFieldCases, Case23RowsThatNoTypeStoresAreRefused) {
  OrderedJson file = entry_of("gemma-3-4b").json;
  for (const char* field : {"head_dim_k_local", "head_dim_v_local"}) file["geometry"][field] = 24;
  const Result<CatalogEntry> entry = parse_catalog_entry(file.dump());
  ASSERT_FALSE(entry.ok());
  EXPECT_THAT(entry.error().message(), HasSubstr("24"));
  EXPECT_THAT(entry.error().message(), HasSubstr("local"));
}

// Field case 24: K and V have sizes of their own.
TEST(CatalogFieldCases, Case24KAndVAreNotMixedUp) {
  const CatalogEntry& mimo = entry_of("mimo-v2-flash");
  const auto with = [&](const char* field, int size) {
    CatalogAssumption assumption;
    assumption.geometry = {{field, size}};
    return figure(mimo.facts.id, CatalogFigure::local_bytes_per_token, 0, KvType::f16, assumption);
  };
  EXPECT_EQ(with("head_dim_k_local", 160), 39 * 8 * (160 + 128) * 2);
  EXPECT_EQ(with("head_dim_v_local", 160), 39 * 8 * (192 + 160) * 2);
}

}  // namespace
}  // namespace weir

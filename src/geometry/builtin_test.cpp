#include "geometry/builtin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace weir {
namespace {

TEST(Builtin, EveryEntryIsReadable) {
  std::set<std::string> ids;
  for (const ModelFacts& m : builtin_models()) {
    EXPECT_TRUE(ids.insert(m.id).second) << m.id;
    const Result<KvGeometry> g = builtin_geometry(m.id);
    ASSERT_TRUE(g.ok());
    EXPECT_EQ(g->layers.size(), static_cast<size_t>(m.n_layers)) << m.id;
    EXPECT_EQ(g->pattern, PatternSource::builtin);
    EXPECT_EQ(g->notes.empty(), m.verified) << m.id;
  }
  EXPECT_GT(ids.size(), 40u);
}

TEST(Builtin, FactsOfOneEntry) {
  const ModelFacts& m = **find_builtin("gemma-4-26b-a4b");
  EXPECT_EQ(m.gguf_arch, "gemma4");
  EXPECT_EQ(m.global->n_head_kv, 2);
  EXPECT_EQ(m.global->head_dim_k, 512);
  EXPECT_EQ(m.local->n_head_kv, 8);
  EXPECT_EQ(m.n_expert, 128);
  EXPECT_EQ(m.final_softcap, 30);
  EXPECT_TRUE(m.v_from_k_global);
  EXPECT_TRUE(m.is_global(29));
  EXPECT_FALSE(m.is_global(28));
  const ModelFacts& all_local = **find_builtin("mistral-7b-v0.1");
  EXPECT_FALSE(all_local.global.has_value());
  EXPECT_EQ(*all_local.n_ff, 14336);
}

TEST(Builtin, AnUnknownIdNamesNearMatches) {
  const auto message = [](const char* id) { return find_builtin(id).error().message(); };
  EXPECT_EQ(find_builtin("x").error().code(), Code::not_found);
  EXPECT_THAT(message("gemma3-27b"), testing::HasSubstr("gemma-3-27b"));
  EXPECT_THAT(message("Gemma 3 12B"), testing::HasSubstr("gemma-3-12b"));
  EXPECT_THAT(message("gpt-oss"), testing::HasSubstr("gpt-oss-20b, gpt-oss-120b"));
  EXPECT_THAT(message("zzzzzzzzzzzz"), testing::HasSubstr("weir catalog list"));
}

}  // namespace
}  // namespace weir

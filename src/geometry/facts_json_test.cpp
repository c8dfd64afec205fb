#include "geometry/facts_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace weir {
namespace {

using nlohmann::json;

json geometry_json(const std::string& id) {
  for (const json& entry : json::parse(builtin_catalog())) {
    if (entry["geometry"]["id"] == id) return entry["geometry"];
  }
  ADD_FAILURE() << id;
  return {};
}

TEST(FactsJson, EachFaultIsNamed) {
  const struct {
    const char* key;
    json value;
    const char* named;
  } faults[] = {
      {"id", "Gemma 3", "'Gemma 3'"},
      {"id", 7, "geometry.id cannot be 7"},
      {"source", "", "geometry.source is empty"},
      {"n_layers", 0, "n_layers is 0"},
      {"n_layers", 1000000, "n_layers is 1000000"},
      {"n_layers", 33, "kv_source names 34 of 33"},
      {"n_layers", 34.5, "n_layers cannot be 34.5"},
      {"n_layers", 1e300, "n_layers cannot be"},
      {"global_layers", {5, 5}, "5 does not"},
      {"global_layers", {34}, "34 does not"},
      {"global_layers", {-1}, "global_layers cannot be [-1]"},
      {"global_layers", json::array(), "0 global layers"},
      {"global_layers", "all", "global_layers cannot be"},
      {"window", nullptr, "geometry.window must be"},
      {"window", 0, "geometry.window must be"},
      {"attention_kind", "full", "'full' with 29 local"},
      {"attention_kind", "sliding", "'sliding'"},
      {"n_head_kv_local", 3, "multiple of n_head_kv_local (3)"},
      {"head_dim_k_local", 0, "head_dim_k_local"},
      {"head_dim_v_global", 2000000000, "head_dim_v_global"},
      {"max_context", 0, "max_context"},
      {"verified", "yes", "verified cannot be"},
      {"head_dim_k_local", nullptr, "head_dim_k_local"},
      {"windows", 1024, "'windows'"},
  };
  ASSERT_TRUE(facts_from_json(geometry_json("gemma-3-4b")).ok());
  for (const auto& fault : faults) {
    json geometry = geometry_json("gemma-3-4b");
    geometry[fault.key] = fault.value;
    const Result<ModelFacts> facts = facts_from_json(geometry);
    ASSERT_FALSE(facts.ok()) << fault.key << " " << fault.value;
    EXPECT_EQ(facts.error().code(), Code::corrupt);
    EXPECT_THAT(facts.error().message(), testing::HasSubstr(fault.named));
  }
}

TEST(FactsJson, AMissingFieldIsNamed) {
  const json whole = geometry_json("gemma-3-4b");
  for (const auto& [key, value] : whole.items()) {
    json geometry = whole;
    geometry.erase(key);
    const Result<ModelFacts> facts = facts_from_json(geometry);
    ASSERT_FALSE(facts.ok()) << key;
    EXPECT_THAT(facts.error().message(), testing::HasSubstr("geometry." + key + " is missing"));
  }
  EXPECT_FALSE(facts_from_json(json::array()).ok());
}

TEST(FactsJson, ALayerReadsTheKvOfAnOwnerOfItsKind) {
  for (const auto& [layer, source] : {std::pair{6, 5}, {7, 8}, {2, 40}}) {
    json geometry = geometry_json("gemma-3-4b");
    geometry["kv_source"][static_cast<size_t>(layer)] = source;
    EXPECT_FALSE(facts_from_json(geometry).ok()) << layer << " " << source;
  }
  json geometry = geometry_json("gemma-3-4b");
  geometry["kv_source"][6] = 4;
  EXPECT_TRUE(facts_from_json(geometry).ok());
}

}  // namespace
}  // namespace weir

#include "openai/schema_check.h"

#include <gtest/gtest.h>

namespace weir::openai {
namespace {

std::optional<std::string> problem(const std::string& schema) {
  return schema_problem(Json::parse(schema));
}

TEST(SchemaCheck, OrdinarySchemasPass) {
  EXPECT_EQ(problem("{}"), std::nullopt);
  EXPECT_EQ(problem(R"({"type":"object","required":["a"],"additionalProperties":false,
      "properties":{"a":{"type":["string","null"],"maxLength":100},
                    "minimum":{"type":"integer","minimum":0,"maximum":10},
                    "b":{"type":"array","items":{"$ref":"#/$defs/n"},"minItems":1}},
      "$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}}}}})"),
            std::nullopt);
}

TEST(SchemaCheck, ReferencesInCirclesAreRefused) {
  EXPECT_TRUE(problem(R"({"allOf":[{"$ref":"#/allOf/0"}]})"));
  EXPECT_TRUE(problem(R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},
                          "b":{"$ref":"#/$defs/a"}}})"));
  // The conversion would put A into A into A.
  EXPECT_TRUE(problem(R"({"allOf":[{"$ref":"#/$defs/A"}],
                          "$defs":{"A":{"properties":{"x":{"allOf":[{"$ref":"#/$defs/A"}]}}}}})"));
  // And here, through B.
  EXPECT_TRUE(problem(R"({"$ref":"#/$defs/A","$defs":{"B":{"$ref":"#/$defs/A"},
                          "A":{"properties":{"x":{"allOf":[{"$ref":"#/$defs/B"}]}}}}})"));
  EXPECT_TRUE(problem(R"({"$ref":"https://example.com/schema"})"));
  EXPECT_TRUE(problem(R"({"$ref":"#/nowhere"})"));
}

TEST(SchemaCheck, WhatMultipliesIsRefused) {
  std::string nested = R"({"type":"string"})";
  for (int i = 0; i < 20; ++i) {
    nested = R"({"type":["object","array"],"properties":{"a":)" + nested + "}}";
  }
  EXPECT_TRUE(problem(nested));
  EXPECT_TRUE(problem(R"({"type":"string","maxLength":100000})"));
  EXPECT_TRUE(problem(R"({"type":"array","items":{},"minItems":-1})"));
  EXPECT_TRUE(problem(R"({"type":"array","items":{},"minItems":5,"maxItems":3})"));
  EXPECT_TRUE(problem(R"({"type":"integer","minimum":1e300})"));
  EXPECT_TRUE(problem(R"({"type":"integer","minimum":5,"maximum":3})"));
}

TEST(SchemaCheck, WhatAllowsNothingIsRefused) {
  EXPECT_TRUE(problem(R"({"properties":{"a":{"enum":[]}}})"));
  EXPECT_TRUE(problem(R"({"type":[]})"));
  EXPECT_TRUE(problem(R"({"anyOf":[]})"));
  EXPECT_TRUE(problem(R"({"oneOf":[]})"));
  EXPECT_FALSE(problem(R"({"properties":{"enum":{"enum":[1]}},"required":[]})"));
}

TEST(SchemaCheck, SizesAreBounded) {
  Json wide = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 513; ++i) wide["properties"]["p" + std::to_string(i)] = Json::object();
  EXPECT_TRUE(schema_problem(wide));
  EXPECT_TRUE(problem(R"({"properties":{")" + std::string(300, 'a') + R"(":{}}})"));
  EXPECT_TRUE(problem(R"({"pattern":"^)" + std::string(2000, '(') + R"($"})"));
  EXPECT_TRUE(problem(R"({"const":")" + std::string(300 << 10, 'a') + R"("})"));
  EXPECT_TRUE(schema_problem(Json::array()));
}

}  // namespace
}  // namespace weir::openai

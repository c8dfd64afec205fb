#include "base/untrusted_json.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(UntrustedJson, DepthAndMembersAreBounded) {
  const JsonLimits limits{.bytes = 1000, .depth = 3, .members = 2};
  EXPECT_TRUE(parse_untrusted("[[[1,2,3,4]]]", limits).ok());
  EXPECT_FALSE(parse_untrusted("[[[[1]]]]", limits).ok());
  EXPECT_TRUE(parse_untrusted(R"({"a":[1,2,3],"b":{"c":1,"d":2}})", limits).ok());
  EXPECT_FALSE(parse_untrusted(R"({"a":1,"b":2,"c":3})", limits).ok());
  EXPECT_TRUE(parse_untrusted(R"(["[[[[{,,,\"[[[["])", limits).ok());  // brackets in a string
  EXPECT_FALSE(parse_untrusted(std::string(1001, ' '), limits).ok());
}

TEST(UntrustedJson, WhatIsNotJsonIsAnErrorWithItsPlace) {
  for (const char* text : {"", "{", "nul", "{\"a\":NaN}", "[1e999]", "[1,]", "\"\xff\"", "]"}) {
    EXPECT_EQ(parse_untrusted(text).status().code(), Code::corrupt) << text;
    EXPECT_EQ(parse_untrusted_ordered(text).status().code(), Code::corrupt) << text;
  }
  EXPECT_NE(parse_untrusted("[1,x]").error().message().find("byte 4"), std::string::npos);
}

TEST(UntrustedJson, OrderIsKeptWhereAsked) {
  EXPECT_EQ(parse_untrusted_ordered(R"({"b":1,"a":2})")->dump(), R"({"b":1,"a":2})");
}

TEST(UntrustedJson, IntegersAreWhole) {
  EXPECT_EQ(json_integer(nlohmann::json(5.0)), 5);
  EXPECT_EQ(json_integer(nlohmann::json(-7)), -7);
  EXPECT_EQ(json_integer(nlohmann::json(UINT64_MAX)), INT64_MAX);
  EXPECT_EQ(json_integer(nlohmann::json(5.5)), std::nullopt);
  EXPECT_EQ(json_integer(nlohmann::json(1e300)), std::nullopt);
  EXPECT_EQ(json_integer(nlohmann::json("5")), std::nullopt);
}

}  // namespace
}  // namespace weir

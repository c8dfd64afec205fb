#include "http/router.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace weir {
namespace {

Router things() {
  Router router;
  const auto nothing = [](const HttpRequest&, std::shared_ptr<ResponseWriter>) {};
  router.add("GET", "/health", nothing, Access::open);
  router.add("GET", "/things/{name}", nothing);
  router.add("DELETE", "/things/{name}", nothing, Access::admin);
  router.add("GET", "/things/all", nothing, Access::open);
  router.add("POST", "/things/{name}/fork/{to}", nothing);
  return router;
}

TEST(Router, NamesMatchOneDecodedSegment) {
  const Router router = things();
  const Router::Match match = router.find("POST", "/things/a%2Fb/fork/%7Bc");
  ASSERT_NE(match.handler, nullptr);
  EXPECT_EQ(match.access, Access::tenant);
  EXPECT_EQ(match.params.at("name"), "a/b");
  EXPECT_EQ(match.params.at("to"), "{c");
  EXPECT_EQ(router.find("GET", "/things/").handler, nullptr);
  EXPECT_EQ(router.find("GET", "/things/a/b").handler, nullptr);
  EXPECT_EQ(router.find("GET", "/things/a/").handler, nullptr);
}

TEST(Router, FixedSegmentsGoBeforeNames) {
  EXPECT_EQ(things().find("GET", "/things/all").access, Access::open);
  EXPECT_EQ(things().find("GET", "/things/al").access, Access::tenant);
}

TEST(Router, SaysWhatAPathServes) {
  const Router::Match wrong = things().find("PUT", "/things/a");
  EXPECT_EQ(wrong.handler, nullptr);
  EXPECT_EQ(wrong.allowed, "GET, HEAD, DELETE, OPTIONS");
  EXPECT_EQ(things().find("GET", "/nothing").allowed, "");
  EXPECT_NE(things().find("HEAD", "/health").handler, nullptr);
}

TEST(Router, BrokenEscapesAreNoPath) {
  for (const char* path : {"/things/%", "/things/%2", "/things/%zz", "/things/%00", "*", ""}) {
    EXPECT_EQ(things().find("GET", path).handler, nullptr) << path;
  }
}

TEST(HttpTypes, QueryValuesAreDecoded) {
  HttpRequest request;
  request.query = "a=1&b=x+y%26z&c&=e&d=%4";
  EXPECT_EQ(request.query_value("a"), "1");
  EXPECT_EQ(request.query_value("b"), "x y&z");
  EXPECT_EQ(request.query_value("c"), "");
  EXPECT_EQ(request.query_value("d"), std::nullopt);
  EXPECT_EQ(request.query_value("e"), std::nullopt);
}

TEST(HttpTypes, ErrorsHaveOpenAisShapeWhateverTheBytes) {
  const HttpResponse response =
      error_response(400, "invalid_request_error", "", "bad \xff\"\n", "messages");
  EXPECT_EQ(response.status, 400);
  const nlohmann::json error = nlohmann::json::parse(response.body).at("error");
  EXPECT_EQ(error.at("message"), "bad \xef\xbf\xbd\"\n");
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  EXPECT_EQ(error.at("param"), "messages");
  EXPECT_TRUE(error.at("code").is_null());
}

}  // namespace
}  // namespace weir

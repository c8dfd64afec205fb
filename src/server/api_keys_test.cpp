#include "server/api_keys.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

ApiKeys parsed(std::string_view text) {
  Result<ApiKeys> keys = ApiKeys::parse(text, "keys");
  EXPECT_TRUE(keys.ok()) << (keys.ok() ? "" : keys.error().message());
  return std::move(*keys);
}

std::optional<Caller> caller(const ApiKeys& keys, std::string name, std::string value) {
  HttpRequest request;
  request.headers = {{std::move(name), std::move(value)}};
  return keys.find(request);
}

TEST(ApiKeys, FindsWhoseAKeyIs) {
  const ApiKeys keys = parsed(
      "# who may ask\n"
      "\n"
      "lonely-key   # for the old client\r\n"
      "alice:a-key floor=1MiB ceiling=2MiB\n"
      "bob:b-key admin\n"
      "alice:a-new-key");
  ASSERT_EQ(keys.tenants().size(), 4u);
  EXPECT_EQ(keys.tenants()[0].name, "");
  EXPECT_EQ(keys.tenants()[2].name, "alice");
  EXPECT_EQ(keys.tenants()[2].floor.v, kMiB);
  EXPECT_EQ(keys.tenants()[2].ceiling.v, 2 * kMiB);
  EXPECT_EQ(keys.tenants()[3].ceiling.v, 0);

  EXPECT_EQ(caller(keys, "authorization", "Bearer lonely-key")->tenant, 1u);
  EXPECT_EQ(caller(keys, "authorization", "bearer  a-key")->tenant, 2u);
  EXPECT_EQ(caller(keys, "authorization", "Bearer a-new-key")->tenant, 2u);
  EXPECT_EQ(caller(keys, "x-api-key", "b-key")->name, "bob");
  EXPECT_TRUE(caller(keys, "x-api-key", "b-key")->is_admin);
  EXPECT_FALSE(caller(keys, "x-api-key", "a-key")->is_admin);
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer a-ke", "Bearer a-keya-key",
                            "Basic a-key", "Bearer A-key", "a-key"}) {
    EXPECT_FALSE(caller(keys, "authorization", wrong)) << wrong;
  }
  EXPECT_FALSE(keys.find(HttpRequest{}));
}

TEST(ApiKeys, SaysWhichLineIsWrongWithoutRepeatingAKey) {
  for (const char* text :
       {"", "# nothing\n", "ok\nalice:", "ok\n:secret", "ok\nsecret secret", "ok\na:secret floor=x",
        "ok\na:secret floor=2MiB ceiling=1MiB", "secret\na:secret", "ok\na:secret floor"}) {
    const Result<ApiKeys> keys = ApiKeys::parse(text, "keys");
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_EQ(keys.error().code(), Code::invalid_input);
    EXPECT_EQ(keys.error().message().find("a:secret"), std::string::npos);
    if (std::string_view(text).find("ok\n") == 0) {
      EXPECT_EQ(keys.error().message().find("keys:2: "), 0u) << keys.error().message();
    }
  }
}

}  // namespace
}  // namespace weir

// /v1/kv and /v1/kv/conversations through a server with keys.
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>

#include "engine/testing/tiny_engine.h"
#include "http/testing/test_client.h"
#include "kv/testing/memory_tier.h"
#include "server/api_server.h"

namespace weir {
namespace {

using nlohmann::json;

constexpr const char* kAlice = "Authorization: Bearer a-key\r\n";
constexpr const char* kBob = "Authorization: Bearer b-key\r\n";
constexpr const char* kRoot = "Authorization: Bearer r-key\r\n";

class KvRoutesTest : public testing::Test {
 protected:
  explicit KvRoutesTest(Tier* tier = nullptr) {
    ApiServerOptions options;
    options.http.port = 0;
    options.keys = *ApiKeys::parse(
        "alice:a-key floor=64KiB ceiling=8MiB\nbob:b-key\nroot:r-key admin", "keys");
    EngineOptions engine_options = reuse_options();
    engine_options.tenants = options.keys->tenants();
    engine_options.tier = tier;
    engine_options.tier_model = "weir-tiny";
    engine = std::move(*Engine::create(tiny_model(), cpu_device(), engine_options));
    server = std::move(*ApiServer::start(tiny_model(), *engine, std::move(options)));
  }
  // A conversation of that name, 200 tokens of prompt and 10 of reply.
  void talk(uint32_t tenant, const std::string& name) {
    Request request = greedy(std::vector<Token>(200, static_cast<Token>(300 + tenant)), 10);
    request.ignore_end = true;
    request.tenant = tenant;
    request.conversation_name = name;
    EXPECT_EQ(engine->run(request).reason, FinishReason::length);
  }
  struct Answer {
    int status = 0;
    json body;
  };
  Answer ask(const std::string& method, const std::string& path, const char* key,
             const std::string& body = "") {
    const TestClient::Response response =
        TestClient(server->http().port())
            .ask(method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n" + key + "\r\n" + body);
    return {response.status, json::parse(response.body, nullptr, false)};
  }
  std::vector<std::string> names(const char* key) {
    std::vector<std::string> result;
    const Answer all = ask("GET", "/v1/kv/conversations", key);
    for (const json& one : all.body.at("data")) {
      result.push_back(one.at("name"));
    }
    return result;
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<ApiServer> server;
};

TEST_F(KvRoutesTest, ATenantSeesItsOwnShareAndAnAdministratorAll) {
  talk(1, "chat");
  const json alice = ask("GET", "/v1/kv", kAlice).body;
  EXPECT_EQ(alice.at("tenant").at("name"), "alice");
  EXPECT_GT(alice.at("tenant").at("bytes"), 0);
  EXPECT_EQ(alice.at("tenant").at("ceiling"), 8 * kMiB);
  EXPECT_EQ(alice.at("tenant").at("conversations"), 1);
  EXPECT_FALSE(alice.contains("used"));
  EXPECT_FALSE(alice.contains("tenants"));
  EXPECT_EQ(ask("GET", "/v1/kv", kBob).body.at("tenant").at("bytes"), 0);

  const json root = ask("GET", "/v1/kv", kRoot).body;
  EXPECT_EQ(root.at("limit"), 64 * kMiB);
  int64_t sum = 0;
  for (const auto& [tag, bytes] : root.at("by_tag").items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, root.at("used"));
  // Nothing runs, and what is kept is of both kinds.
  EXPECT_GT(root.at("by_layer_kind").at("global"), 0);
  EXPECT_EQ(root.at("by_layer_kind").at("global"), root.at("by_tag").at("idle"));
  EXPECT_GT(root.at("by_layer_kind").at("local"), 0);
  EXPECT_EQ(root.at("by_layer_kind").at("local"), root.at("by_tag").at("restart"));
  ASSERT_EQ(root.at("tenants").size(), 4u);
  EXPECT_EQ(root.at("tenants")[1], alice.at("tenant"));
}

TEST_F(KvRoutesTest, OneTenantNeverSeesAnothersConversations) {
  talk(1, "chat");
  talk(2, "other");
  EXPECT_EQ(names(kAlice), std::vector<std::string>{"chat"});
  EXPECT_EQ(names(kBob), std::vector<std::string>{"other"});
  for (const char* what : {"pin", "unpin", "checkpoint"}) {
    EXPECT_EQ(ask("POST", "/v1/kv/conversations/chat/" + std::string(what), kBob).status, 404);
  }
  EXPECT_EQ(ask("GET", "/v1/kv/conversations/chat", kBob).status, 404);
  EXPECT_EQ(ask("POST", "/v1/kv/conversations/chat/fork", kBob, R"({"to":"x"})").status, 404);
  EXPECT_EQ(ask("POST", "/v1/kv/conversations/chat/rewind", kBob, R"({"tokens":1})").status, 404);
  EXPECT_EQ(ask("DELETE", "/v1/kv/conversations/chat", kBob).status, 404);
  EXPECT_EQ(ask("GET", "/v1/kv/conversations", "").status, 401);
  EXPECT_EQ(names(kAlice), std::vector<std::string>{"chat"});
}

TEST_F(KvRoutesTest, AConversationCanBePinnedCheckpointedRewoundForkedAndDeleted) {
  talk(1, "a/b c");
  const std::string path = "/v1/kv/conversations/a%2Fb%20c";
  const json chat = ask("GET", path, kAlice).body;
  EXPECT_EQ(chat.at("name"), "a/b c");
  EXPECT_GE(chat.at("tokens"), 209);
  EXPECT_GT(chat.at("cached_tokens"), 150);
  EXPECT_GT(chat.at("unique_bytes"), 0);
  EXPECT_EQ(chat.at("pinned"), false);

  EXPECT_EQ(ask("POST", path + "/pin", kAlice).body.at("pinned"), true);
  EXPECT_EQ(ask("POST", path + "/unpin", kAlice).body.at("pinned"), false);
  EXPECT_EQ(ask("POST", path + "/checkpoint", kAlice).status, 200);
  const Answer fork = ask("POST", path + "/fork", kAlice, R"({"to":"branch"})");
  EXPECT_EQ(fork.status, 200);
  EXPECT_EQ(fork.body.at("name"), "branch");
  EXPECT_EQ(fork.body.at("tokens"), chat.at("tokens"));
  EXPECT_EQ(fork.body.at("cached_tokens"), chat.at("cached_tokens"));
  // Neither of two names keeps anything alone.
  EXPECT_EQ(fork.body.at("unique_bytes"), 0);
  EXPECT_EQ(ask("GET", path, kAlice).body.at("unique_bytes"), 0);
  EXPECT_EQ(ask("POST", path + "/fork", kAlice, R"({"to":"branch"})").status, 400);
  EXPECT_EQ(ask("POST", path + "/rewind", kAlice, R"({"tokens":64})").body.at("tokens"), 64);
  EXPECT_EQ(ask("GET", "/v1/kv/conversations/branch", kAlice).body.at("tokens"), chat.at("tokens"));
  EXPECT_EQ(ask("DELETE", path, kAlice).body.at("deleted"), true);
  EXPECT_EQ(ask("DELETE", path, kAlice).status, 404);
  EXPECT_EQ(names(kAlice), std::vector<std::string>{"branch"});
}

// What a request that runs would bring back at its end is not taken away under it.
TEST_F(KvRoutesTest, AConversationThatRunsIsListedAndStays) {
  Request request = greedy(std::vector<Token>(200, Token{301}), 1500);
  request.ignore_end = true;
  request.tenant = 1;
  request.conversation_name = "chat";
  std::promise<void> ended;
  const RequestId id =
      engine->submit(std::move(request), {.on_finish = [&](const Reply&) { ended.set_value(); }});
  const std::string path = "/v1/kv/conversations/chat";
  const json chat = ask("GET", path, kAlice).body;
  EXPECT_EQ(chat.at("running"), 1);
  EXPECT_EQ(chat.at("tokens"), 0);
  const Answer refused = ask("DELETE", path, kAlice);
  EXPECT_EQ(refused.status, 409);
  EXPECT_EQ(refused.body.at("error").at("code"), "conversation_running");
  EXPECT_EQ(ask("POST", path + "/rewind", kAlice, R"({"tokens":0})").status, 409);
  engine->cancel(id);
  ended.get_future().wait();
  EXPECT_EQ(ask("GET", path, kAlice).body.at("running"), 0);
  EXPECT_EQ(ask("DELETE", path, kAlice).status, 200);
  EXPECT_TRUE(names(kAlice).empty());
}

TEST_F(KvRoutesTest, ANameWithoutAReplyLeavesNothing) {
  Request request = greedy({}, 1);
  request.tenant = 1;
  request.conversation_name = "chat";
  EXPECT_EQ(engine->run(request).reason, FinishReason::failed);
  EXPECT_TRUE(names(kAlice).empty());
}

// Lowered while it runs: what is idle goes at once, what is too long from now on is refused.
TEST_F(KvRoutesTest, AnAdministratorLowersTheBudget) {
  talk(1, "chat");
  const int64_t before = ask("GET", "/v1/kv", kRoot).body.at("used");
  EXPECT_EQ(ask("PUT", "/v1/kv", kAlice, R"({"limit":"1MiB"})").status, 403);
  for (const char* body : {"", "[]", "{\"limit\":-1}", "{\"limit\":\"much\"}", "{\"limit\":1.5}",
                           "{\"limit\":\"65MiB\"}"}) {
    EXPECT_EQ(ask("PUT", "/v1/kv", kRoot, body).status, 400) << body;
  }
  EXPECT_EQ(ask("PUT", "/v1/kv", kRoot, R"({"limit":1024})").status, 409);
  EXPECT_EQ(ask("GET", "/v1/kv", kRoot).body.at("limit"), 64 << 20);

  const Answer lowered =
      ask("PUT", "/v1/kv", kRoot, "{\"limit\":" + std::to_string(before / 2) + "}");
  EXPECT_EQ(lowered.status, 200);
  EXPECT_EQ(lowered.body.at("limit"), before / 2);
  EXPECT_LE(lowered.body.at("used"), before / 2);
  Request long_one = greedy(std::vector<Token>(1500, Token{301}), 10);
  long_one.tenant = 1;
  EXPECT_EQ(engine->run(long_one).reason, FinishReason::failed);
  EXPECT_EQ(ask("PUT", "/v1/kv", kRoot, R"({"limit":"64MiB"})").status, 200);
  EXPECT_EQ(engine->run(long_one).reason, FinishReason::length);
}

TEST_F(KvRoutesTest, BadBodiesAreRefused) {
  talk(1, "chat");
  constexpr size_t kDepth = 200000;
  const std::string deep_body =
      "{\"a\":" + std::string(kDepth, '[') + std::string(kDepth, ']') + "}";
  for (const char* deed : {"pin", "rewind", "fork"}) {
    const std::string path = std::string("/v1/kv/conversations/chat/") + deed;
    EXPECT_EQ(ask("POST", path, kAlice, deep_body).status, 400) << deed;
  }
  for (const char* body :
       {"", "{}", "[]", "{", "{\"tokens\":-1}", "{\"tokens\":\"1\"}", "{\"tokens\":1e3}",
        "{\"tokens\":99999}", "{\"tokens\":1e99}", "{\"tokens\":18446744073709551615}", "\xff"}) {
    EXPECT_EQ(ask("POST", "/v1/kv/conversations/chat/rewind", kAlice, body).status, 400) << body;
  }
  for (const char* body : {"", "{\"to\":1}", "{\"to\":\"\"}", "{\"to\":\"a\\u0000\"}"}) {
    EXPECT_EQ(ask("POST", "/v1/kv/conversations/chat/fork", kAlice, body).status, 400) << body;
  }
  const std::string deep(100'000, '[');
  EXPECT_EQ(ask("POST", "/v1/kv/conversations/chat/rewind", kAlice, deep).status, 400);
  EXPECT_EQ(ask("GET", "/v1/kv/conversations/%ff", kAlice).status, 404);
  EXPECT_EQ(ask("PUT", "/v1/kv/conversations/chat", kAlice).status, 405);
}

struct MemoryTierFirst {
  MemoryTier tier{1};
};
class KvRoutesTierTest : public MemoryTierFirst, public KvRoutesTest {
 protected:
  KvRoutesTierTest() : KvRoutesTest(&tier) {}
};

TEST_F(KvRoutesTierTest, AnAdministratorSeesTheTier) {
  talk(1, "chat");
  const json root = ask("GET", "/v1/kv", kRoot).body;
  EXPECT_EQ(root.at("tier").at("lookups"), 1);
  EXPECT_EQ(root.at("tier").at("hits"), 0);
  EXPECT_EQ(root.at("tier").at("misses").at("not_held"), 1);
  EXPECT_GT(root.at("by_tag").at("tier_memory"), 0);
  EXPECT_FALSE(ask("GET", "/v1/kv", kAlice).body.contains("tier"));
}

}  // namespace
}  // namespace weir

#include "server/api_server.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/testing/tiny_engine.h"
#include "http/testing/test_client.h"

namespace weir {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

class ApiServerTest : public testing::Test {
 protected:
  ApiServerTest() {
    options.http.port = 0;
    options.openai.model_id = "tiny";
    engine_options.max_running = 2;
  }
  TestClient connect() {
    if (!server) {
      engine = std::move(*Engine::create(tiny_model(), cpu_device(), engine_options));
      server = std::move(*ApiServer::start(tiny_model(), *engine, std::move(options)));
    }
    return TestClient(server->http().port());
  }
  // The value of a line of /metrics; -1 if there is none.
  static double metric(const std::string& text, const std::string& name) {
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + name.size() + 2, nullptr);
  }

  EngineOptions engine_options = tiny_options();
  ApiServerOptions options;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<ApiServer> server;
};

TEST_F(ApiServerTest, IsHealthyWhileItMoves) {
  TestClient client = connect();
  const TestClient::Response response = client.get("/health");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(json::parse(response.body).at("status"), "ok");
  EXPECT_EQ(client.ask("HEAD /health HTTP/1.0\r\n\r\n").status, 200);
}

// An event that does not return holds the engine's thread, as a step that hangs would.
TEST_F(ApiServerTest, IsNotHealthyWhenThereIsWorkAndNoStepFinishes) {
  options.stall_limit = 20ms;
  TestClient client = connect();
  std::promise<void> let_go, finished;
  RequestEvents events;
  events.on_start = [held = let_go.get_future().share()] { held.wait(); };
  events.on_finish = [&](const Reply&) { finished.set_value(); };
  engine->submit(greedy(tiny_tokens("Once"), 2), std::move(events));
  TestClient::Response response;
  do {
    response = client.get("/health");
  } while (response.status == 200);
  EXPECT_EQ(response.status, 503);
  const json body = json::parse(response.body);
  EXPECT_EQ(body.at("status"), "stalled");
  EXPECT_EQ(body.at("error").at("type"), "unavailable_error");
  let_go.set_value();
  finished.get_future().wait();
  while (client.get("/health").status != 200) std::this_thread::yield();
}

TEST_F(ApiServerTest, MetricsCountWhatRequestsDid) {
  TestClient client = connect();
  Request request = greedy(tiny_tokens("Once upon a time"), 5);
  request.ignore_end = true;
  const Reply reply = engine->run(request);
  std::string text;
  do {  // the snapshot is of the last step's end, a moment after its events
    text = client.get("/metrics").body;
  } while (metric(text, "weir_requests_total{outcome=\"length\"}") != 1);
  EXPECT_EQ(metric(text, "weir_prompt_tokens_total"), reply.usage.prompt_tokens);
  EXPECT_EQ(metric(text, "weir_generated_tokens_total"), 5);
  EXPECT_EQ(metric(text, "weir_step_seconds_count"), 5);
  EXPECT_EQ(metric(text, "weir_step_seconds_bucket{le=\"+Inf\"}"), 5);
  EXPECT_EQ(metric(text, "weir_kv_limit_bytes"), 64 * kMiB);
  EXPECT_GT(metric(text, "weir_kv_peak_bytes"), 0);
  EXPECT_GE(metric(text, "weir_kv_bytes{tag=\"live_global\"}"), 0);
  EXPECT_EQ(metric(text, "weir_http_connections"), 1);
  EXPECT_NE(text.find("# TYPE weir_step_seconds histogram"), std::string::npos);
}

TEST_F(ApiServerTest, KeysOpenEverythingButHealth) {
  options.keys = std::move(*ApiKeys::parse("alice:a-key\nroot:r-key admin", "keys"));
  TestClient client = connect();
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(client.get("/metrics").status, 401);
  EXPECT_EQ(client.get("/metrics", "Authorization: Bearer a-key\r\n").status, 403);
  EXPECT_EQ(client.get("/metrics", "Authorization: Bearer r-key\r\n").status, 200);
}

TEST_F(ApiServerTest, AfterStoppingNobodyIsServed) {
  TestClient idle = connect();
  EXPECT_EQ(idle.get("/health").status, 200);
  const uint16_t port = server->http().port();
  server->stop(1s);
  EXPECT_TRUE(idle.is_at_end());
  EXPECT_FALSE(TestClient(port).is_connected());
}

}  // namespace
}  // namespace weir

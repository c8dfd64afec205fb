// Field cases through a server's own port: requests that are too long, clients that leave, what is
// told about reuse, and tenants that learn nothing of each other.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "engine/testing/prompts.h"
#include "http/testing/test_client.h"
#include "server/api_server.h"

namespace weir {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

class FieldCases : public testing::Test {
 protected:
  void start(EngineOptions engine_options = reuse_options(), ApiServerOptions options = {}) {
    server.reset();
    options.http.port = 0;
    if (options.keys) engine_options.tenants = options.keys->tenants();
    engine = std::move(*Engine::create(tiny_model(), cpu_device(), engine_options));
    server = std::move(*ApiServer::start(tiny_model(), *engine, std::move(options)));
  }
  static json completion(const std::vector<Token>& prompt, int64_t max_tokens) {
    return {
        {"prompt", prompt}, {"max_tokens", max_tokens}, {"temperature", 0}, {"ignore_eos", true}};
  }
  TestClient connect() { return TestClient(server->http().port()); }
  struct Answer {
    int status = 0;
    json body;  // of a stream: its last event but [DONE]
    std::vector<json> events;
    bool has_done = false;
  };
  Answer ask(json body, bool stream, const std::string& key = {}) {
    body["stream"] = stream;
    if (stream) body["stream_options"] = {{"include_usage", true}};
    const std::string path = body.contains("messages") ? "/v1/chat/completions" : "/v1/completions";
    const TestClient::Response response = connect().post(
        path, body.dump(), key.empty() ? "" : "Authorization: Bearer " + key + "\r\n");
    Answer answer;
    answer.status = response.status;
    EXPECT_TRUE(response.is_complete);
    if (response.headers.at("content-type") != "text/event-stream") {
      answer.body = json::parse(response.body, nullptr, false);
      return answer;
    }
    for (size_t at = 0; (at = response.body.find("data: ", at)) != std::string::npos;) {
      const size_t end = response.body.find("\n\n", at);
      const std::string event = response.body.substr(at + 6, end - at - 6);
      answer.has_done = event == "[DONE]";
      if (!answer.has_done) answer.events.push_back(json::parse(event, nullptr, false));
      at = end;
    }
    answer.body = answer.events.back();
    return answer;
  }
  // As of now; nothing runs.
  EngineStats settled_stats() {
    EngineStats stats;
    do {
      engine->with_core([&](EngineCore& core) { stats = core.stats(); });
    } while (stats.running + stats.waiting > 0 || server->gate().stats().running > 0);
    return stats;
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<ApiServer> server;
};

// --- 29: requests that are too long --------------------------------------------------------------

TEST_F(FieldCases, OneTokenTooManyIsTheSameErrorEverywhere) {
  EngineOptions options = reuse_options();
  options.max_context = 100;
  start(options);
  std::string words;
  for (int i = 0; i < 120; ++i) words += "king ";
  const json chat = {{"messages", {{{"role", "user"}, {"content", words}}}}, {"max_tokens", 1}};
  const EngineStats before = settled_stats();
  for (const bool stream : {false, true}) {
    for (const json& request : {completion(text_tokens(100), 1), chat}) {
      const Answer answer = ask(request, stream);
      EXPECT_EQ(answer.status, 400);
      const json& error = answer.body.at("error");
      EXPECT_EQ(error.at("type"), "invalid_request_error");
      EXPECT_EQ(error.at("code"), "context_length_exceeded");
      const std::string message = error.at("message");
      EXPECT_NE(message.find("context holds 100"), std::string::npos) << message;
      if (!request.contains("messages")) {
        EXPECT_NE(message.find("has 100 tokens"), std::string::npos) << message;
      }
    }
    EXPECT_EQ(ask(completion(text_tokens(99), 1), stream).status, 200);
  }
  // The 99 tokens were read once; the others left no trace.
  EXPECT_EQ(settled_stats().prompt_tokens - before.prompt_tokens, 2 * 99u);
}

// The limit half-way through a reply: nothing was wrong with the request, so it ends like any other
// that became too long, with its true reason and both counts; a stream never just stops.
TEST_F(FieldCases, AReplyThatReachesTheLimitSaysSo) {
  EngineOptions options = reuse_options();
  options.max_context = 100;
  start(options);
  for (const bool stream : {false, true}) {
    const Answer answer = ask(completion(text_tokens(60), 500), stream);
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.has_done, stream);
    const json& usage = answer.body.at("usage");
    EXPECT_EQ(usage.at("prompt_tokens"), 60);
    EXPECT_EQ(usage.at("completion_tokens"), 40);
    const json& last = stream ? answer.events.at(answer.events.size() - 2) : answer.body;
    EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(last["choices"][0]["weir"]["finish"], "context_full");
  }
}

TEST_F(FieldCases, AThousandOverlongRequestsChangeNothing) {
  EngineOptions options = reuse_options();
  options.max_context = 1000;
  start(options);
  const json good = completion(text_tokens(200), 8);
  const json first = ask(good, false).body;
  const EngineStats before = settled_stats();
  TestClient client = connect();
  const std::string overlong = completion(text_tokens(1000), 8).dump();
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(client.post("/v1/completions", overlong).status, 400);
  const EngineStats after = settled_stats();
  EXPECT_EQ(after.kv_by_tag, before.kv_by_tag);
  EXPECT_EQ(after.steps, before.steps);
  EXPECT_EQ(after.prompt_tokens, before.prompt_tokens);
  EXPECT_EQ(after.requests_by_outcome, before.requests_by_outcome);
  const json again = ask(good, false).body;
  EXPECT_EQ(again["choices"][0]["text"], first["choices"][0]["text"]);
  EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"], 192);
}

// --- 30: clients that leave ----------------------------------------------------------------------

// A hundred leave at random moments: in the queue, while their prompt is read, while the reply
// comes, with a goodbye and without. Nothing of them stays, and the next one finds what they had
// read.
TEST_F(FieldCases, AHundredClientsLeaveWhenTheyLike) {
  EngineOptions engine_options = reuse_options();
  engine_options.max_running = 4;
  engine_options.step_tokens = 64;
  ApiServerOptions options;
  options.gate.max_running = 4;
  options.gate.max_waiting = 64;
  start(engine_options, std::move(options));
  uint32_t random = 4;
  const auto draw = [&](uint32_t n) {
    random = random * 1664525u + 1013904223u;
    return (random >> 8) % n;
  };
  constexpr int kAtOnce = 20;
  for (int round = 0; round < 5; ++round) {
    std::vector<TestClient> clients;
    for (int i = 0; i < kAtOnce; ++i) {
      json body = completion(text_tokens(200 + draw(400), 300 + 20 * i), 1500);
      body["stream"] = i % 2 == 0;
      const std::string text = body.dump();
      clients.push_back(connect());
      clients.back().send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                          std::to_string(text.size()) + "\r\n\r\n" + text);
    }
    for (TestClient& client : clients) {
      std::this_thread::sleep_for(std::chrono::milliseconds(draw(15)));
      draw(2) == 0 ? client.hang_up() : client.reset();
    }
    const auto patience = std::chrono::steady_clock::now() + 30s;
    const auto is_empty = [&] {
      const GateStats inside = server->gate().stats();
      return inside.running + inside.waiting == 0;
    };
    while (!is_empty() && std::chrono::steady_clock::now() < patience) {
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_TRUE(is_empty()) << "round " << round;
  }
  const EngineStats stats = settled_stats();
  EXPECT_EQ(stats.kv.resident().v, 0);
  // A reply of 1500 tokens takes longer than anybody stayed.
  EXPECT_EQ(stats.requests_by_outcome[static_cast<size_t>(FinishReason::length)], 0u);
  EXPECT_LT(stats.generated_tokens, 100u * 1500u / 4);

  const Request request = saying(text_tokens(200, 300), 6);
  const json next = ask(completion(request.prompt, 6), false).body;
  EXPECT_EQ(next["usage"]["completion_tokens"], 6);
  const Reply same = engine->run(request);
  EXPECT_EQ(same.tokens, cold(request));
  EXPECT_EQ(connect().get("/health").status, 200);
}

// --- 31: the truth about reuse
// --------------------------------------------------------------------

TEST_F(FieldCases, CachedTokensAreExactAndMissesAreExplained) {
  for (const bool stream : {false, true}) {
    start();
    const auto told = [&](const std::vector<Token>& prompt) {
      const Answer answer = ask(completion(prompt, 1), stream);
      const json& last = stream ? answer.events.at(answer.events.size() - 2) : answer.body;
      json reuse = last.at("choices").at(0).at("weir").at("reuse");
      const json& usage = answer.body.at("usage");
      EXPECT_EQ(usage.at("prompt_tokens"), prompt.size());
      reuse["cached"] = usage.at("prompt_tokens_details").at("cached_tokens");
      return reuse;
    };
    const std::vector<Token> prompt = text_tokens(100);
    const json cold_prompt = told(prompt);
    EXPECT_EQ(cold_prompt["cached"], 0);
    EXPECT_EQ(cold_prompt["miss"], "never_stored");
    std::vector<Token> edited = prompt;
    edited[50] = 3500;
    const json half = told(edited);
    EXPECT_EQ(half["cached"], 48);
    EXPECT_EQ(half["first_new_token"], 50);
    EXPECT_EQ(half["restart_at"], 48);
    EXPECT_EQ(half["miss"], "never_stored");
    const json all = told(prompt);
    EXPECT_EQ(all["cached"], 96);
    EXPECT_EQ(all["miss"], "none");
  }
}

// --- tenants -------------------------------------------------------------------------------------

// A second tenant's request for a prompt that the first has cached costs what it costs when nobody
// has it: no token cached, the same tokens read in the same number of steps, which is all that time
// could tell.
TEST_F(FieldCases, ATenantCannotLearnWhatAnotherHasCached) {
  ApiServerOptions options;
  options.keys = *ApiKeys::parse("alice:a-key\nbob:b-key", "keys");
  start(reuse_options(), std::move(options));
  struct Cost {
    int64_t cached;
    uint64_t computed, steps;
    bool operator==(const Cost&) const = default;
  };
  const auto cost_of = [&](const std::vector<Token>& prompt, const std::string& key) {
    const EngineStats before = settled_stats();
    const Answer answer = ask(completion(prompt, 4), false, key);
    EXPECT_EQ(answer.status, 200);
    const EngineStats after = settled_stats();
    const json& weir = answer.body["choices"][0]["weir"];
    EXPECT_EQ(weir["reuse"]["restart_at"],
              answer.body["usage"]["prompt_tokens_details"]["cached_tokens"]);
    return Cost{answer.body["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>(),
                after.computed_tokens - before.computed_tokens, after.steps - before.steps};
  };
  const Cost nobody_has_it = cost_of(text_tokens(500), "a-key");
  EXPECT_EQ(nobody_has_it.cached, 0);
  EXPECT_EQ(cost_of(text_tokens(500), "a-key").cached, 496);
  EXPECT_EQ(cost_of(text_tokens(500), "b-key"), nobody_has_it);
  EXPECT_EQ(cost_of(text_tokens(500), "b-key").cached, 496);
  // Nor the beginning of it.
  const std::vector<Token> other = text_tokens(500, 900);
  cost_of(other, "a-key");
  EXPECT_EQ(cost_of(joined({other.begin(), other.begin() + 496}, text_tokens(4, 700)), "b-key"),
            nobody_has_it);
}

}  // namespace
}  // namespace weir

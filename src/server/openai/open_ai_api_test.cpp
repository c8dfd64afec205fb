// The API from a request's body to the answer's, on weir-tiny, without connections.
#include "server/openai/open_ai_api.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>

#include "engine/testing/tiny_engine.h"
#include "http/testing/recording_writer.h"
#include "openai/response.h"

namespace weir {
namespace {

using openai::Json;

class OpenAiApiTest : public testing::Test {
 protected:
  OpenAiApiTest() { start(tiny_options()); }
  ~OpenAiApiTest() override { api_.reset(); }

  void start(EngineOptions engine_options) {
    api_.reset();
    engine_options.tenants.resize(4);
    engine_ = *Engine::create(tiny_model(), cpu_device(), engine_options);
    OpenAiOptions options;
    options.model_id = "weir-tiny";
    options.n_threads = 2;
    api_ = std::make_unique<OpenAiApi>(
        tiny_model(), *engine_, options,
        [this](std::vector<Submission> all, ResponseWriter& writer) {
          std::vector<RequestId> ids;
          for (Submission& one : all) {
            {
              const std::lock_guard lock(mutex_);  // several workers
              tenants_.insert(one.request.tenant);
              last_request_ = one.request;
            }
            if (ids.size() == late_choice_) one.request.start_before = {};
            ids.push_back(engine_->submit(std::move(one.request), std::move(one.events)));
          }
          const auto cancel = [this, ids] {
            for (const RequestId id : ids) engine_->cancel(id);
          };
          writer.on_gone(cancel);
          return Admission{std::nullopt, cancel};
        },
        [](const Caller& caller) { return caller.tenant; });
    router_ = Router();
    api_->add_routes(router_);
  }

  std::shared_ptr<RecordingWriter> send(HttpRequest request) {
    auto writer = std::make_shared<RecordingWriter>();
    const Router::Match match = router_.find(request.method, request.path);
    EXPECT_NE(match.handler, nullptr) << request.path;
    request.params = match.params;
    (*match.handler)(request, writer);
    return writer;
  }
  std::shared_ptr<RecordingWriter> post(const std::string& path, const Json& body) {
    HttpRequest request;
    request.method = "POST";
    request.path = path;
    request.body = body.is_string() ? body.get<std::string>() : body.dump();
    return send(std::move(request));
  }
  static HttpResponse wait(const std::shared_ptr<RecordingWriter>& writer) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!writer->has_ended() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(writer->has_ended());
    return writer->response();
  }
  // The answer's JSON; its status must be as said.
  Json ask(const std::string& path, const Json& body, int status = 200) {
    const HttpResponse response = wait(post(path, body));
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_EQ(response.content_type, "application/json");
    return Json::parse(response.body, nullptr, false);
  }
  Json get(const std::string& path, int status = 200) {
    HttpRequest request;
    request.method = "GET";
    request.path = path;
    const HttpResponse response = wait(send(std::move(request)));
    EXPECT_EQ(response.status, status) << response.body;
    return Json::parse(response.body, nullptr, false);
  }
  // The events of a stream, which must end with [DONE].
  std::vector<Json> stream(const std::string& path, Json body) {
    body["stream"] = true;
    const auto writer = post(path, body);
    const HttpResponse response = wait(writer);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.content_type, "text/event-stream");
    std::vector<Json> events;
    const std::vector<std::string> chunks = writer->chunks();
    for (const std::string& chunk : chunks) {
      EXPECT_TRUE(chunk.starts_with("data: ") && chunk.ends_with("\n\n")) << chunk;
      if (chunk != openai::kSseDone) {
        events.push_back(Json::parse(chunk.substr(6), nullptr, false));
      }
    }
    EXPECT_TRUE(!chunks.empty() && chunks.back() == openai::kSseDone);
    return events;
  }

  static Json chat(const std::string& text, int max_tokens = 24) {
    return {{"messages", Json::array({{{"role", "user"}, {"content", text}}})},
            {"max_tokens", max_tokens},
            {"temperature", 0}};
  }
  static std::string content(const Json& answer, size_t choice = 0) {
    return answer["choices"][choice]["message"]["content"].get<std::string>();
  }
  static Json weather_tool() {
    return Json::parse(R"({"type":"function","function":{"name":"get_weather","description":"d",
      "parameters":{"type":"object","properties":{"place":{"enum":["Bonn","Paris"]},
      "days":{"type":"integer","minimum":1,"maximum":7}},"required":["place","days"],
      "additionalProperties":false}}})");
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<OpenAiApi> api_;
  Router router_;
  std::mutex mutex_;
  std::set<uint32_t> tenants_;
  Request last_request_;
  size_t late_choice_ = SIZE_MAX;  // is refused by the engine: it waited too long
};

TEST_F(OpenAiApiTest, ChatIsAnswered) {
  const Json answer = ask("/v1/chat/completions", chat("Hello!", 200));
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "weir-tiny");
  EXPECT_FALSE(content(answer).empty());
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["weir"]["finish"], "end_of_turn");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], std::ssize(tiny_tokens(user_turn("Hello!"))));
  EXPECT_GT(answer["usage"]["completion_tokens"], 1);
  EXPECT_EQ(content(ask("/chat/completions", chat("Hello!", 200))), content(answer));
}

TEST_F(OpenAiApiTest, StreamAddsUpToTheAnswer) {
  Json body = chat("Tell me a tale.", 40);
  body["seed"] = 7;
  body["temperature"] = 1;
  const Json answer = ask("/v1/chat/completions", body);
  body["stream_options"] = {{"include_usage", true}};
  const std::vector<Json> events = stream("/v1/chat/completions", body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.front()["choices"][0]["delta"]["role"], "assistant");
  std::string text, finish;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["object"], "chat.completion.chunk");
    EXPECT_EQ(events[i]["id"], events[0]["id"]);
    EXPECT_TRUE(events[i]["usage"].is_null());
    const Json& choice = events[i]["choices"][0];
    if (choice["delta"].contains("content")) text += choice["delta"]["content"].get<std::string>();
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"].get<std::string>();
  }
  EXPECT_EQ(text, content(answer));
  EXPECT_EQ(Json(finish), answer["choices"][0]["finish_reason"]);
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], answer["usage"]["completion_tokens"]);
}

TEST_F(OpenAiApiTest, SeedDecidesAndChoicesDiffer) {
  Json body = chat("Tell me a tale.", 24);
  body["temperature"] = 1.2;
  body["seed"] = 11;
  const Json one = ask("/v1/chat/completions", body);
  body["n"] = 3;
  const Json three = ask("/v1/chat/completions", body);
  const Json again = ask("/v1/chat/completions", body);
  ASSERT_EQ(three["choices"].size(), 3u);
  std::set<std::string> texts;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(three["choices"][i]["index"], i);
    EXPECT_EQ(content(three, i), content(again, i));
    texts.insert(content(three, i));
  }
  EXPECT_EQ(texts.size(), 3u);
  EXPECT_EQ(content(three, 0), content(one));
  EXPECT_EQ(three["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
  EXPECT_GT(three["usage"]["completion_tokens"], one["usage"]["completion_tokens"]);
}

TEST_F(OpenAiApiTest, RepliesEndForTheReasonsThatAreTold) {
  Json body = chat("Tell me a tale.", 60);
  const Json whole = ask("/v1/chat/completions", body);
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["choices"][0]["weir"]["finish"], "length");
  const std::string text = content(whole);
  const std::string stop = text.substr(text.size() / 2, 5);
  body["stop"] = stop;
  const Json stopped = ask("/v1/chat/completions", body);
  EXPECT_EQ(content(stopped), text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(stopped["choices"][0]["weir"]["finish"], "stop_string");
}

TEST_F(OpenAiApiTest, FullContextIsALengthWithItsTrueName) {
  EngineOptions options = tiny_options();
  options.max_context = 60;
  start(options);
  Json body = chat("Hello!");
  body.erase("max_tokens");
  body["ignore_eos"] = true;
  const Json full = ask("/v1/chat/completions", body);
  EXPECT_EQ(full["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(full["choices"][0]["weir"]["finish"], "context_full");

  const Json refused = ask(
      "/v1/chat/completions",
      chat("A long story about a king who had a daughter, and a fox, and a wolf, and a bear, and a "
           "hen, and a cat, and a dog, and a house in the wood, and a river, and a mill."),
      400);
  EXPECT_EQ(refused["error"]["code"], "context_length_exceeded");
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("60"), std::string::npos);
}

TEST_F(OpenAiApiTest, LogprobsAreOfTheTextAndSumToAtMostOne) {
  Json body = chat("Hello!", 10);
  body["logprobs"] = true;
  body["top_logprobs"] = 20;
  const auto check = [](const Json& entries, const std::string& text) {
    std::string joined;
    for (const Json& entry : entries) {
      double sum = 0;
      for (const Json& top : entry["top_logprobs"]) sum += std::exp(top["logprob"].get<double>());
      EXPECT_EQ(entry["top_logprobs"].size(), 20u);
      EXPECT_GT(sum, 0.2);
      EXPECT_LE(sum, 1.0001);
      EXPECT_EQ(entry["logprob"], entry["top_logprobs"][0]["logprob"]);  // greedy
      for (const Json& byte : entry["bytes"]) joined += static_cast<char>(byte.get<int>());
    }
    EXPECT_EQ(joined, text);
  };
  const Json answer = ask("/v1/chat/completions", body);
  check(answer["choices"][0]["logprobs"]["content"], content(answer));
  Json streamed = Json::array();
  for (const Json& event : stream("/v1/chat/completions", body)) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const Json& entry : logprobs["content"]) streamed.push_back(entry);
  }
  check(streamed, content(answer));
  body["top_logprobs"] = 0;
  EXPECT_TRUE(
      ask("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
          .empty());
}

TEST_F(OpenAiApiTest, BiasForcesAndBans) {
  const Json plain =
      ask("/v1/completions",
          {{"prompt", "Once upon a"}, {"max_tokens", 1}, {"temperature", 0}, {"logprobs", 2}});
  const std::string first = plain["choices"][0]["text"].get<std::string>();
  const Token likely = tiny_tokens("Once upon a" + first).back();
  Json body = {{"prompt", "Once upon a"}, {"max_tokens", 1}, {"temperature", 0}};
  body["logit_bias"] = {{std::to_string(likely), -100}};
  EXPECT_NE(ask("/v1/completions", body)["choices"][0]["text"], first);
  const Token king = tiny_tokens("Once upon a king").back();
  body["logit_bias"] = {{std::to_string(king), 100}};
  body["max_tokens"] = 3;
  EXPECT_EQ(ask("/v1/completions", body)["choices"][0]["text"], " king king king");
  body["logit_bias"] = {{"999999", 1}};
  EXPECT_EQ(ask("/v1/completions", body, 400)["error"]["param"], "logit_bias");
}

TEST_F(OpenAiApiTest, SchemaIsObeyed) {
  Json body = chat("Hello!", 300);
  body["temperature"] = 1;
  body["response_format"] = Json::parse(R"({"type":"json_schema","json_schema":{"name":"n",
    "strict":true,"schema":{"type":"object","properties":{"zebra":{"type":"integer","minimum":3,
    "maximum":40},"animal":{"enum":["fox","hen"]},"list":{"type":"array","items":{"type":"boolean"},
    "minItems":2,"maxItems":3}},"required":["zebra","animal","list"],
    "additionalProperties":false}}})");
  for (int seed = 0; seed < 4; ++seed) {
    body["seed"] = seed;
    const Json answer = ask("/v1/chat/completions", body);
    ASSERT_EQ(answer["choices"][0]["finish_reason"], "stop") << content(answer);
    const Json value = Json::parse(content(answer), nullptr, false);
    ASSERT_TRUE(value.is_object()) << content(answer);
    ASSERT_EQ(value.size(), 3u);
    EXPECT_EQ(value.begin().key(), "zebra");
    EXPECT_TRUE(value["zebra"] >= 3 && value["zebra"] <= 40);
    EXPECT_TRUE(value["animal"] == "fox" || value["animal"] == "hen");
    EXPECT_TRUE(value["list"].size() == 2 || value["list"].size() == 3);
  }
}

TEST_F(OpenAiApiTest, RequiredToolIsCalledAndStreamsTheSame) {
  Json body = chat("How is the weather?", 300);
  body["temperature"] = 1;
  body["seed"] = 5;
  body["tools"] = Json::array({weather_tool()});
  body["tool_choice"] = "required";
  body["parallel_tool_calls"] = false;
  const Json answer = ask("/v1/chat/completions", body);
  ASSERT_EQ(answer["choices"][0]["finish_reason"], "tool_calls") << answer.dump();
  const Json& message = answer["choices"][0]["message"];
  EXPECT_TRUE(message["content"].is_null());
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  const Json& call = message["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "get_weather");
  const std::string arguments = call["function"]["arguments"].get<std::string>();
  const Json value = Json::parse(arguments, nullptr, false);
  EXPECT_TRUE(value["place"] == "Bonn" || value["place"] == "Paris") << arguments;
  EXPECT_TRUE(value["days"] >= 1 && value["days"] <= 7);

  std::string streamed, name, finish;
  for (const Json& event : stream("/v1/chat/completions", body)) {
    const Json& choice = event["choices"][0];
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"].get<std::string>();
    if (!choice["delta"].contains("tool_calls")) continue;
    const Json& delta = choice["delta"]["tool_calls"][0];
    EXPECT_EQ(delta["index"], 0);
    if (delta.contains("id")) {
      EXPECT_TRUE(name.empty());
      name = delta["function"]["name"].get<std::string>();
    }
    streamed += delta["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(name, "get_weather");
  EXPECT_EQ(streamed, arguments);
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(OpenAiApiTest, AnswersOfToolsAreRead) {
  Json body = chat("How is the weather?", 8);
  body["tools"] = Json::array({weather_tool()});
  body["messages"].push_back(Json::parse(R"({"role":"assistant","content":null,"tool_calls":[
    {"id":"c1","type":"function","function":{"name":"get_weather","arguments":"{\"days\":1}"}}]})"));
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "rain"}});
  EXPECT_EQ(ask("/v1/chat/completions", body)["object"], "chat.completion");
}

TEST_F(OpenAiApiTest, GoneClientsRequestsAreCancelled) {
  Json body = chat("Tell me a tale.", 100000);
  body["n"] = 2;
  body["stream"] = true;
  body["ignore_eos"] = true;
  const auto writer = post("/v1/chat/completions", body);
  while (writer->chunks().size() < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  writer->go();
  bool is_idle = false;
  for (int i = 0; i < 5000 && !is_idle; ++i) {
    engine_->with_core([&](EngineCore& core) { is_idle = core.is_idle(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(is_idle);
}

// One choice of three is refused: the request fails as a whole, once, and nothing of it runs on.
TEST_F(OpenAiApiTest, ARequestFailsWithItsFirstChoiceThatFails) {
  EngineOptions options = tiny_options();
  options.max_running = 2;
  start(options);
  late_choice_ = 2;
  Json body = chat("Tell me a tale.", 100000);
  body["n"] = 3;
  body["ignore_eos"] = true;
  for (const bool streams : {false, true}) {
    body["stream"] = streams;
    const auto writer = post("/v1/chat/completions", body);
    const HttpResponse response = wait(writer);
    if (writer->is_stream()) {
      const std::vector<std::string> chunks = writer->chunks();
      EXPECT_NE(chunks.back().find("\"queue_timeout\""), std::string::npos) << chunks.back();
      EXPECT_EQ(std::ranges::count_if(chunks,
                                      [](const auto& c) { return c.find("\"error\"") != c.npos; }),
                1);
    } else {
      EXPECT_EQ(response.status, 503);
      EXPECT_EQ(Json::parse(response.body)["error"]["code"], "queue_timeout");
    }
    bool is_idle = false;
    for (int i = 0; i < 2000 && !is_idle; ++i) {
      engine_->with_core([&](EngineCore& core) { is_idle = core.is_idle(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(is_idle);
  }
  engine_->with_core([&](EngineCore& core) {
    const auto outcomes = core.stats().requests_by_outcome;
    EXPECT_EQ(outcomes[static_cast<size_t>(FinishReason::failed)], 2u);
    EXPECT_EQ(outcomes[static_cast<size_t>(FinishReason::cancelled)], 4u);
  });
}

TEST_F(OpenAiApiTest, StoppedEngineIsAnErrorAndNotSilence) {
  Json body = chat("Tell me a tale.", 100000);
  body["ignore_eos"] = true;
  const auto whole = post("/v1/chat/completions", body);
  body["stream"] = true;
  const auto streamed = post("/v1/chat/completions", body);
  while (streamed->chunks().size() < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  engine_->with_core([](EngineCore& core) { core.cancel_all(); });
  const HttpResponse refused = wait(whole);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "cancelled");
  wait(streamed);
  EXPECT_NE(streamed->chunks().back().find("\"error\""), std::string::npos);
}

TEST_F(OpenAiApiTest, RefusalsHaveOpenAisShape) {
  const auto refused = [&](const Json& body) {
    const Json answer = ask("/v1/chat/completions", body, 400);
    EXPECT_EQ(answer["error"]["type"], "invalid_request_error");
    EXPECT_TRUE(answer["error"].contains("param") && answer["error"].contains("code"));
    EXPECT_FALSE(answer["error"]["message"].get<std::string>().empty());
    return answer["error"]["param"];
  };
  EXPECT_EQ(refused("{\"messages\":"), Json());
  Json body = chat("a");
  body["messages"].push_back({{"role", "user"}, {"content", "b"}});
  EXPECT_EQ(refused(body), "messages");  // the template wants roles to alternate
  body = chat("a");
  body["grammar"] = "root ::= (";
  EXPECT_EQ(refused(body), "grammar");
  body["stream"] = true;
  EXPECT_EQ(refused(body), "grammar");  // not a stream with an error in it
  body = chat("a");
  body["response_format"] =
      Json::parse(R"({"type":"json_schema","json_schema":{"schema":{"type":"no such type"}}})");
  EXPECT_EQ(refused(body), "response_format");
}

TEST_F(OpenAiApiTest, ErrorsOfTheEngineKeepTheirStatusBeforeAStreamBegins) {
  EngineOptions options = tiny_options();
  options.kv_budget = {2 * kMiB};
  options.max_context = 100000;
  start(options);
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "king ";
  Json body = chat(text);
  body["stream"] = true;
  const Json refused = ask("/v1/chat/completions", body, 400);
  EXPECT_EQ(refused["error"]["code"], "context_length_exceeded");
  EXPECT_NE(refused["error"]["message"].get<std::string>().find("budget"), std::string::npos);
}

TEST_F(OpenAiApiTest, ProgressIsToldWhereAsked) {
  EngineOptions options = tiny_options();
  options.step_tokens = 64;
  start(options);
  std::string text;
  for (int i = 0; i < 300; ++i) text += "king ";
  Json body = chat(text, 2);
  body["return_progress"] = true;
  int64_t last = 0, total = 0, count = 0;
  for (const Json& event : stream("/v1/chat/completions", body)) {
    if (!event.contains("prompt_progress")) continue;
    EXPECT_GT(event["prompt_progress"]["processed"], last);
    last = event["prompt_progress"]["processed"].get<int64_t>();
    total = event["prompt_progress"]["total"].get<int64_t>();
    ++count;
  }
  EXPECT_GE(count, 4);
  EXPECT_EQ(last, total);
}

TEST_F(OpenAiApiTest, LastTurnAndTenantReachTheEngine) {
  EngineOptions options = reuse_options();
  for (const char* name : {"", "a", "b", "c"}) options.tenants.push_back({name, {}, {}});
  start(options);
  Json body = chat("Hello!", 2);
  body["messages"] = Json::parse(R"([{"role":"system","content":"Be brief."},
    {"role":"user","content":"One?"},{"role":"assistant","content":"1"},
    {"role":"user","content":"Two?"}])");
  HttpRequest request;
  request.method = "POST";
  request.path = "/v1/chat/completions";
  request.body = body.dump();
  request.headers = {{"x-conversation", "my chat"}};
  request.caller.tenant = 3;
  EXPECT_EQ(wait(send(request)).status, 200);
  EXPECT_EQ(tenants_, std::set<uint32_t>{3});
  EXPECT_EQ(last_request_.conversation_name, "my chat");
  ASSERT_EQ(last_request_.restart_at.size(), 1u);
  const Tokenizer tokenizer(tiny_model().vocab());
  const auto end = last_request_.prompt.begin() + last_request_.restart_at[0];
  const std::string before =
      tokenizer.text(std::vector<Token>(last_request_.prompt.begin(), end), true);
  EXPECT_TRUE(before.ends_with("<start_of_turn>user\n")) << before;
  request.headers = {{"x-conversation", std::string(200, 'a')}};
  EXPECT_EQ(wait(send(request)).status, 400);
}

TEST_F(OpenAiApiTest, SecondTurnAndAnotherQuestionFindWhatWasRead) {
  start(reuse_options());
  std::string system;
  for (int i = 0; i < 40; ++i) system += "The king said to the fox: come here. ";
  Json body = chat("One?", 8);
  body["messages"] = Json::array(
      {{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", "One?"}}});
  const Json first = ask("/v1/chat/completions", body);
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const int64_t read = first["usage"]["prompt_tokens"].get<int64_t>();

  Json other = body;
  other["messages"][1]["content"] = "What about the hen?";
  const Json branch = ask("/v1/chat/completions", other)["usage"];
  EXPECT_GT(branch["prompt_tokens_details"]["cached_tokens"], read - 40);
  EXPECT_LT(branch["prompt_tokens_details"]["cached_tokens"], branch["prompt_tokens"]);

  body["messages"].push_back({{"role", "assistant"}, {"content", content(first)}});
  body["messages"].push_back({{"role", "user"}, {"content", "Two?"}});
  const Json second = ask("/v1/chat/completions", body)["usage"];
  EXPECT_GT(second["prompt_tokens_details"]["cached_tokens"], read - 20);
}

TEST_F(OpenAiApiTest, CompletionsOfSeveralPrompts) {
  const Json body = {{"prompt", {"Once upon a", "The king said"}},
                     {"n", 2},
                     {"max_tokens", 6},
                     {"seed", 3},
                     {"temperature", 1.3},
                     {"echo", true}};
  const Json answer = ask("/v1/completions", body);
  EXPECT_EQ(answer["object"], "text_completion");
  ASSERT_EQ(answer["choices"].size(), 4u);
  std::vector<std::string> texts(4);
  for (size_t i = 0; i < 4; ++i) {
    texts[i] = answer["choices"][i]["text"].get<std::string>();
    EXPECT_TRUE(texts[i].starts_with(i < 2 ? "Once upon a" : "The king said")) << texts[i];
  }
  EXPECT_NE(texts[0], texts[1]);
  std::vector<std::string> streamed(4);
  for (const Json& event : stream("/v1/completions", body)) {
    const Json& choice = event["choices"][0];
    streamed[choice["index"].get<size_t>()] += choice["text"].get<std::string>();
  }
  EXPECT_EQ(streamed, texts);
  EXPECT_EQ(answer["usage"]["prompt_tokens"],
            std::ssize(tiny_tokens("Once upon a")) + std::ssize(tiny_tokens("The king said")));
}

TEST_F(OpenAiApiTest, BestAreTheLikeliest) {
  Json body = {{"prompt", "Once upon a"}, {"max_tokens", 5}, {"seed", 3},
               {"temperature", 1.5},      {"logprobs", 0},   {"n", 6}};
  const auto mean = [](const Json& choice) {
    double sum = 0;
    for (const Json& logprob : choice["logprobs"]["token_logprobs"]) sum += logprob.get<double>();
    return sum / static_cast<double>(choice["logprobs"]["token_logprobs"].size());
  };
  double best = -1e9;
  const Json six = ask("/v1/completions", body);
  for (const Json& choice : six["choices"]) best = std::max(best, mean(choice));
  body["n"] = 1;
  body["best_of"] = 6;
  const Json answer = ask("/v1/completions", body);
  ASSERT_EQ(answer["choices"].size(), 1u);
  EXPECT_NEAR(mean(answer["choices"][0]), best, 1e-4);
}

TEST_F(OpenAiApiTest, CompletionLogprobsHaveTheirOffsets) {
  const Json body = {
      {"prompt", "Once upon a"}, {"max_tokens", 8}, {"temperature", 0}, {"logprobs", 2}};
  const Json answer = ask("/v1/completions", body);
  const std::string text = answer["choices"][0]["text"].get<std::string>();
  const Json& whole = answer["choices"][0]["logprobs"];
  ASSERT_EQ(whole["tokens"].size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(
        text.find(whole["tokens"][i].get<std::string>(), whole["text_offset"][i].get<size_t>()),
        whole["text_offset"][i]);
  }
  Json offsets = Json::array();
  for (const Json& event : stream("/v1/completions", body)) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const Json& offset : logprobs["text_offset"]) offsets.push_back(offset);
  }
  EXPECT_EQ(offsets, whole["text_offset"]);
}

TEST_F(OpenAiApiTest, TokenPromptsAreTakenAsTheyAre) {
  Json body = {{"prompt", tiny_tokens("Once upon a")}, {"max_tokens", 6}, {"temperature", 0}};
  const Json by_tokens = ask("/v1/completions", body);
  body["prompt"] = "Once upon a";
  EXPECT_EQ(by_tokens["choices"][0]["text"], ask("/v1/completions", body)["choices"][0]["text"]);
  body["prompt"] = {1 << 30};
  EXPECT_EQ(ask("/v1/completions", body, 400)["error"]["param"], "prompt");
}

TEST_F(OpenAiApiTest, ModelsAndTokens) {
  const Json models = get("/v1/models");
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], "weir-tiny");
  EXPECT_EQ(models["data"][0]["meta"]["n_vocab"], tiny_model().n_vocab());
  EXPECT_EQ(get("/v1/models/weir-tiny")["object"], "model");
  EXPECT_EQ(get("/v1/models/gpt", 404)["error"]["code"], "model_not_found");

  const std::string text = "The king said \xC3\xA9\xE2\x82\xAC.";
  const Json tokens = ask("/tokenize", {{"content", text}})["tokens"];
  EXPECT_EQ(ask("/detokenize", {{"tokens", tokens}})["content"], text);
  const Json pieces = ask("/tokenize", {{"content", text}, {"with_pieces", true}})["tokens"];
  ASSERT_EQ(pieces.size(), tokens.size());
  EXPECT_EQ(pieces[0]["id"], tokens[0]);
  EXPECT_EQ(ask("/apply-template", chat("Hi"))["prompt"], user_turn("Hi"));
  EXPECT_EQ(ask("/detokenize", {{"tokens", {1 << 30}}}, 400)["error"]["param"], "tokens");
}

TEST_F(OpenAiApiTest, ManyAtOnce) {
  const std::string expected = content(ask("/v1/chat/completions", chat("Hello!")));
  std::vector<std::shared_ptr<RecordingWriter>> writers;
  for (int i = 0; i < 24; ++i) {
    Json body = chat("Hello!");
    body["stream"] = i % 2 == 0;
    writers.push_back(post("/v1/chat/completions", body));
    if (i % 6 == 5) writers.back()->go();
  }
  for (int i = 0; i < 24; ++i) {
    if (i % 6 == 5) continue;
    const HttpResponse response = wait(writers[static_cast<size_t>(i)]);
    EXPECT_EQ(response.status, 200);
    if (i % 2 == 1) {
      EXPECT_EQ(content(Json::parse(response.body)), expected);
    }
  }
}

}  // namespace
}  // namespace weir

#include "openai/response.h"

#include <gtest/gtest.h>

#include <limits>

namespace weir::openai {
namespace {

const AnswerHead kHead{"chatcmpl-1", 1700000000, "tiny", "weir"};

FinishedChoice choice(const std::string& text) {
  FinishedChoice made;
  made.content = text;
  made.finish_reason = "stop";
  made.facts.finish = "end_of_turn";
  return made;
}

TEST(ChatAnswer, HasOpenAisShape) {
  const Json answer = chat_answer(kHead, {choice("Hi"), choice("Ho")}, {10, 4, 3, std::nullopt});
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["created"], 1700000000);
  ASSERT_EQ(answer["choices"].size(), 2u);
  EXPECT_EQ(answer["choices"][1]["index"], 1);
  EXPECT_EQ(answer["choices"][1]["message"]["content"], "Ho");
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(answer["choices"][0]["weir"]["finish"], "end_of_turn");
  EXPECT_FALSE(answer["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(answer["usage"]["total_tokens"], 13);
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
  EXPECT_FALSE(answer["usage"].contains("completion_tokens_details"));
}

TEST(ChatAnswer, CallsAndReasoning) {
  FinishedChoice made = choice("");
  made.reasoning = "hm";
  made.tool_calls = {{"c1", "f", "{\"a\":1}"}};
  made.finish_reason = "tool_calls";
  const Json answer = chat_answer(kHead, {made}, {1, 0, 2, 1});
  const Json& message = answer["choices"][0]["message"];
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(message["reasoning_content"], "hm");
  EXPECT_EQ(message["tool_calls"][0].dump(),
            R"({"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}})");
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
}

TEST(ChatAnswer, LogprobsAreNumbersAndBytes) {
  FinishedChoice made = choice("\xC3\xA9");
  made.has_logprobs = true;
  made.logprobs = {{{"\xC3", -0.5f}, {{"\xC3", -0.5f}}},
                   {{"\xA9", -std::numeric_limits<float>::infinity()}, {}}};
  const Json answer = Json::parse(dump(chat_answer(kHead, {made}, {})));
  const Json& content = answer["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["bytes"], Json({0xC3}));
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 1u);
  EXPECT_EQ(content[1]["logprob"], -9999.0);
}

TEST(ChatEvents, EachPartOfADeltaIsOneEvent) {
  ChoiceDelta delta;
  delta.reasoning = "r";
  delta.content = "c";
  delta.tool_calls = {{0, "id", "f", ""}, {0, "", "", "{}"}};
  const std::vector<Json> events = chat_delta_events(kHead, 2, delta);
  ASSERT_EQ(events.size(), 4u);
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["choices"][0]["index"], 2);
    EXPECT_TRUE(event["choices"][0]["finish_reason"].is_null());
  }
  EXPECT_EQ(events[0]["choices"][0]["delta"]["reasoning_content"], "r");
  EXPECT_EQ(events[1]["choices"][0]["delta"]["content"], "c");
  const Json& first = events[2]["choices"][0]["delta"]["tool_calls"][0];
  EXPECT_EQ(first["index"], 0);
  EXPECT_EQ(first["id"], "id");
  EXPECT_EQ(first["function"]["name"], "f");
  const Json& second = events[3]["choices"][0]["delta"]["tool_calls"][0];
  EXPECT_FALSE(second.contains("id"));
  EXPECT_EQ(second["function"].dump(), R"({"arguments":"{}"})");
}

TEST(ChatEvents, LogprobsTravelWithoutText) {
  ChoiceDelta delta;
  delta.logprobs = {{{"\xC3", -1}, {}}};
  const std::vector<Json> events = chat_delta_events(kHead, 0, delta);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["content"].size(), 1u);
  EXPECT_TRUE(chat_delta_events(kHead, 0, {}).empty());
}

TEST(CompletionAnswer, HasOpenAisShape) {
  FinishedChoice made = choice("cd");
  made.has_logprobs = true;
  made.logprobs = {{{"c", -1}, {{"c", -1}, {"x", -2}}}, {{"d", -3}, {}}};
  const Json answer = completion_answer(kHead, {made}, {"ab"}, {2, 0, 2, std::nullopt});
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], "abcd");
  const Json& logprobs = answer["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"c", "d"}));
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1}));
  EXPECT_EQ(logprobs["top_logprobs"][0]["x"], -2);
  ChoiceDelta delta;
  delta.content = "d";
  delta.logprobs = {made.logprobs[1]};
  EXPECT_EQ(completion_delta_event(kHead, 0, delta, 7)["choices"][0]["logprobs"]["text_offset"][0],
            7);
}

TEST(Events, UsageProgressAndErrors) {
  EXPECT_TRUE(usage_event(kHead, true, {})["choices"].empty());
  const Json progress = progress_event(kHead, true, 0, 100, 20, 50, 12.6);
  EXPECT_EQ(progress["prompt_progress"].dump(),
            R"({"total":100,"cache":20,"processed":50,"time_ms":13.0})");
  EXPECT_EQ(sse({{"a", "\xff"}}), "data: {\"a\":\"\xEF\xBF\xBD\"}\n\n");
  ApiError error;
  error.message = "no";
  EXPECT_EQ(
      error_json(error).dump(),
      R"({"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}})");
}

TEST(RandomIds, DoNotRepeat) {
  const std::string id = random_id("chatcmpl-");
  EXPECT_EQ(id.size(), 9u + 32);
  EXPECT_NE(id, random_id("chatcmpl-"));
}

}  // namespace
}  // namespace weir::openai

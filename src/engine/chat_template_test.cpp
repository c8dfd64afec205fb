#include "engine/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/chat_reply.h"
#include "engine/testing/tiny_engine.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

// One of the templates that llama.cpp's source has, by its file's name.
ChatTemplate model_template(const std::string& name) {
  std::ifstream file(WEIR_LLAMA_SOURCE_DIR "/models/templates/" + name + ".jinja");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << name;
  return *ChatTemplate::create(tiny_model().vocab_model(), text.str());
}

ChatTemplate tiny_template() { return *ChatTemplate::create(tiny_model().vocab_model()); }

const ChatTool kWeather{
    "get_weather", "The weather of a place",
    R"({"type":"object","properties":{"place":{"type":"string"}},"required":["place"]})"};
const ChatTool kAdd{
    "add", "Adds",
    R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"]})"};

ChatInput ask(std::vector<ChatTool> tools = {}) {
  ChatInput input;
  input.messages = {{"system", "Be brief."}, {"user", "How is the weather in Bonn?"}};
  input.tools = std::move(tools);
  return input;
}

ChatPrompt applied(const ChatTemplate& with, const ChatInput& input) {
  Result<ChatPrompt> prompt = with.apply(input);
  EXPECT_TRUE(prompt.ok()) << prompt.status().message();
  return prompt.ok() ? std::move(*prompt) : ChatPrompt{};
}

// The reply read a letter at a time; the deltas must add up to the whole.
ChatReply read(const ChatPrompt& prompt, const std::string& text, bool is_whole = true) {
  ChatReplyReader reader(prompt.format);
  ChatReply sum;
  const auto add = [&](const ChatReplyDelta& delta) {
    sum.reasoning += delta.reasoning;
    sum.content += delta.content;
    for (const auto& call : delta.tool_calls) {
      if (call.index == sum.tool_calls.size()) {
        EXPECT_FALSE(call.id.empty() || call.name.empty());
        sum.tool_calls.push_back({call.id, call.name, ""});
      }
      if (call.index >= sum.tool_calls.size()) {
        ADD_FAILURE() << "a call is missing";
        return;
      }
      sum.tool_calls[call.index].arguments += call.arguments;
    }
  };
  for (const char c : text) add(reader.push(std::string_view(&c, 1)));
  add(reader.finish(is_whole));
  EXPECT_EQ(sum.content, reader.reply().content);
  EXPECT_EQ(sum.reasoning, reader.reply().reasoning);
  EXPECT_EQ(sum.tool_calls.size(), reader.reply().tool_calls.size());
  for (size_t i = 0; i < sum.tool_calls.size(); ++i) {
    EXPECT_EQ(sum.tool_calls[i].arguments, reader.reply().tool_calls[i].arguments);
  }
  return sum;
}

TEST(ChatTemplate, PlainRepliesAreText) {
  const ChatPrompt prompt = applied(tiny_template(), ask());
  EXPECT_EQ(prompt.text,
            "<start_of_turn>user\nBe brief.\n\nHow is the weather in Bonn?<end_of_turn>\n"
            "<start_of_turn>model\n");
  EXPECT_EQ(prompt.reply_start, "<start_of_turn>model\n");
  EXPECT_TRUE(prompt.grammar.empty());
  const std::string text = "Fine. <b>{\"name\": 1}</b> <tool_call> \n";
  EXPECT_EQ(read(prompt, text).content, text);
}

TEST(ChatTemplate, RefusalsAreErrors) {
  ChatInput input = ask();
  input.messages = {{"user", "a"}, {"user", "b"}};
  const Result<ChatPrompt> prompt = tiny_template().apply(input);
  ASSERT_FALSE(prompt.ok());
  EXPECT_EQ(prompt.error().code(), Code::invalid_input);
  EXPECT_NE(prompt.error().message().find("alternate"), std::string::npos);
  EXPECT_EQ(prompt.error().message().find('\n'), std::string::npos);
}

TEST(ChatTemplate, LastTurnStartsWhereAnotherQuestionWould) {
  const ChatTemplate tiny = tiny_template();
  ChatInput input = ask();
  input.messages = {{"system", "Be brief."}, {"user", "One?"},    {"assistant", "1"},
                    {"user", "x marks"},     {"assistant", "So"}, {"user", "  Two?"}};
  ChatPrompt prompt = applied(tiny, input);
  size_t start = tiny.last_turn_start(input, prompt);
  EXPECT_EQ(prompt.text.substr(start, 4), "Two?");
  input.messages.resize(4);
  prompt = applied(tiny, input);
  start = tiny.last_turn_start(input, prompt);
  EXPECT_EQ(prompt.text.substr(start, 7), "x marks");
  input.messages = {{"system", "Be brief."}};
  EXPECT_EQ(tiny.last_turn_start(input, applied(tiny, input)), 0u);
}

TEST(ChatTemplate, ToolsAreTextWhereTheTemplateHasNone) {
  const ChatTemplate tiny = tiny_template();
  EXPECT_FALSE(tiny.knows_tools());
  ChatInput input = ask({kWeather, kAdd});
  ChatPrompt prompt = applied(tiny, input);
  EXPECT_NE(prompt.text.find("get_weather"), std::string::npos);
  EXPECT_FALSE(prompt.grammar.empty());
  EXPECT_EQ(prompt.trigger_words, std::vector<std::string>{"<tool_call>"});

  const std::string call =
      R"({"name": "get_weather", "arguments": {"place": "Bonn, <tool_call>"}})";
  ChatReply reply = read(prompt, "I look. <tool_call>" + call + "</tool_call>");
  EXPECT_EQ(reply.content, "I look. ");
  ASSERT_EQ(reply.tool_calls.size(), 1u);
  EXPECT_EQ(reply.tool_calls[0].name, "get_weather");
  EXPECT_EQ(Json::parse(reply.tool_calls[0].arguments)["place"], "Bonn, <tool_call>");

  reply = read(prompt, "<tool_call>" + call +
                           R"(, {"name": "add", "arguments": {"a": 1, "b": 2}})" + "</tool_call>");
  EXPECT_EQ(reply.tool_calls.size(), 2u);
  EXPECT_EQ(read(prompt, "No need.").content, "No need.");

  input.tool_choice = ChatToolChoice::none;
  prompt = applied(tiny, input);
  EXPECT_EQ(prompt.text.find("get_weather"), std::string::npos);
  EXPECT_TRUE(prompt.grammar.empty());
}

TEST(ChatTemplate, CallCutOffKeepsItsBeginning) {
  ChatInput input = ask({kWeather});
  input.tool_choice = ChatToolChoice::required;
  const ChatPrompt prompt = applied(tiny_template(), input);
  EXPECT_TRUE(prompt.trigger_words.empty());
  const ChatReply reply =
      read(prompt, R"(<tool_call>{"name": "get_weather", "arguments": {"place": "Bo)", false);
  ASSERT_EQ(reply.tool_calls.size(), 1u);
  EXPECT_EQ(reply.tool_calls[0].arguments.substr(0, 9), R"({"place":)");
}

TEST(ChatTemplate, AnswersOfToolsBecomeTheUsersWhereTheTemplateHasNone) {
  ChatInput input = ask({kWeather});
  input.messages.push_back(
      {"assistant", "", {}, "", {{"c1", "get_weather", R"({"place":"Bonn"})"}}});
  input.messages.push_back({"tool", "rain", {}, "", {}, "c1"});
  input.messages.push_back({"user", "Thanks. And tomorrow?"});
  const ChatPrompt prompt = applied(tiny_template(), input);
  EXPECT_NE(prompt.text.find(R"(<start_of_turn>model
<tool_call>{"name":"get_weather","arguments":{"place":"Bonn"}}</tool_call><end_of_turn>)"),
            std::string::npos)
      << prompt.text;
  EXPECT_NE(prompt.text.find("rain\n</tool_result>\nThanks. And tomorrow?"), std::string::npos);
}

TEST(ChatTemplate, GrammarOfCallsIsObeyed) {
  ChatInput input = ask({kWeather, kAdd});
  input.tool_choice = ChatToolChoice::required;
  const ChatPrompt prompt = applied(tiny_template(), input);
  std::vector<Token> start =
      *Tokenizer(tiny_model().vocab()).tokenize(prompt.reply_start, false, true);
  const GrammarParams grammar{
      .text = prompt.grammar, .triggers = {}, .reasoning = {}, .prefix = start};
  const auto parsed =
      std::make_shared<const Grammar>(*Grammar::create(grammar, Tokenizer(tiny_model().vocab())));
  const auto core = make_tiny_core();
  int whole = 0;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    Request request = greedy(tiny_tokens(prompt.text), 100);
    request.sampling.seed = seed;
    request.sampling.temperature = 1.0f;
    request.sampling.parsed_grammar = parsed;
    const Reply reply = reply_to(*core, request);
    const ChatReply parts = read(prompt, reply.text, reply.reason == FinishReason::end_of_turn);
    ASSERT_FALSE(parts.tool_calls.empty()) << reply.text;
    if (reply.reason != FinishReason::end_of_turn) continue;  // inside a long string
    const Json arguments = Json::parse(parts.tool_calls[0].arguments);
    EXPECT_TRUE(arguments.contains(parts.tool_calls[0].name == "add" ? "a" : "place"));
    ++whole;
  }
  EXPECT_GT(whole, 0);
}

// The library's own formats: what a model of each family writes, and what must come out.
struct Family {
  const char* file;
  bool knows_tools;
  bool has_marks;     // something that a call begins with and text does not
  const char* reply;  // reasons (where it can), then calls
  const char* reasoning;
};
class Families : public testing::TestWithParam<Family> {};

TEST_P(Families, CallsAndReasoningAreTakenApart) {
  const Family& family = GetParam();
  const ChatTemplate with = model_template(family.file);
  EXPECT_EQ(with.knows_tools(), family.knows_tools);
  const ChatInput input = ask({kWeather});
  const ChatPrompt prompt = applied(with, input);
  EXPECT_NE(prompt.text.find("get_weather"), std::string::npos);
  EXPECT_EQ(!prompt.grammar.empty(), family.has_marks);
  EXPECT_GT(with.last_turn_start(input, prompt), prompt.text.find("get_weather"));
  const ChatReply reply = read(prompt, family.reply);
  EXPECT_EQ(reply.reasoning, family.reasoning);
  ASSERT_EQ(reply.tool_calls.size(), 1u) << reply.content;
  EXPECT_EQ(reply.tool_calls[0].name, "get_weather");
  EXPECT_EQ(Json::parse(reply.tool_calls[0].arguments)["place"], "Bonn");
}

INSTANTIATE_TEST_SUITE_P(
    Chat, Families,
    testing::Values(
        Family{"google-gemma-2-2b-it", false, true,
               "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"place\": "
               "\"Bonn\"}}</tool_call>",
               ""},
        Family{"Qwen-Qwen3-0.6B", true, true,
               "<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
               "{\"place\": \"Bonn\"}}\n</tool_call>",
               "Hm.\n"},
        Family{"openai-gpt-oss-120b", true, true,
               "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
               "to=functions.get_weather <|constrain|>json<|message|>{\"place\":\"Bonn\"}",
               "Hm."},
        Family{"meta-llama-Llama-3.1-8B-Instruct", true, false,
               "{\"name\": \"get_weather\", \"parameters\": {\"place\": \"Bonn\"}}", ""},
        Family{"google-gemma-4-31B-it", true, true,
               "<|tool_call>call:get_weather{place:<|\"|>Bonn<|\"|>}<tool_call|>", ""}),
    [](const auto& test) {
      std::string name = test.param.file;
      std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
      return name;
    });

}  // namespace
}  // namespace weir

#include "openai/request.h"

#include <gtest/gtest.h>

namespace weir::openai {
namespace {

std::string with(const std::string& fields) {
  return R"({"model":"m","messages":[{"role":"user","content":"Hello"}])" +
         (fields.empty() ? "" : "," + fields) + "}";
}

ChatRequest chat(const std::string& body) {
  Parsed<ChatRequest> parsed = parse_chat_request(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body << ": " << error->message;
    return {};
  }
  return std::get<ChatRequest>(parsed);
}

ApiError refusal(const std::string& body) {
  Parsed<ChatRequest> parsed = parse_chat_request(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  ADD_FAILURE() << body << " was accepted";
  return {};
}

TEST(ChatRequest, EveryFieldArrives) {
  const ChatRequest r = chat(with(
      R"("stream":true,"stream_options":{"include_usage":true},"max_tokens":5,
         "max_completion_tokens":7,"n":3,"stop":["a","b",""],"seed":-5,"temperature":0.5,
         "top_p":0.25,"top_k":-1,"min_p":0.125,"presence_penalty":1,"frequency_penalty":-2,
         "repeat_penalty":1.5,"logit_bias":{"17":-100,"3":2.5},"logprobs":true,"top_logprobs":4,
         "reasoning_effort":"high","chat_template_kwargs":{"a":[1]},"enable_thinking":false,
         "return_progress":true,"ignore_eos":true)"));
  EXPECT_TRUE(r.stream && r.include_usage && r.return_progress && r.ignore_end);
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.n, 3);
  EXPECT_EQ(r.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.seed, -5);
  EXPECT_EQ(r.temperature, 0.5);
  EXPECT_EQ(r.top_p, 0.25);
  EXPECT_EQ(r.top_k, -1);
  EXPECT_EQ(r.min_p, 0.125);
  EXPECT_EQ(r.presence_penalty, 1);
  EXPECT_EQ(r.frequency_penalty, -2);
  EXPECT_EQ(r.repeat_penalty, 1.5);
  EXPECT_EQ(r.logit_bias, (std::vector<std::pair<int32_t, double>>{{17, -100}, {3, 2.5}}));
  EXPECT_EQ(r.n_logprobs, 4);
  EXPECT_EQ(r.enable_thinking, false);
  EXPECT_EQ(r.template_arguments, (std::vector<std::pair<std::string, std::string>>{
                                      {"a", "[1]"}, {"reasoning_effort", "\"high\""}}));
}

TEST(ChatRequest, NullIsAsGoodAsAbsent) {
  const ChatRequest r =
      chat(with(R"("temperature":null,"stop":null,"max_tokens":null,"tools":null,"tool_choice":null,
              "response_format":null,"logit_bias":null,"stream":null,"seed":null)"));
  EXPECT_FALSE(r.temperature || r.max_tokens || r.seed || r.stream);
  EXPECT_TRUE(r.tools.empty());
  EXPECT_EQ(r.n_logprobs, -1);
}

TEST(ChatRequest, LlamaCppsWordsForTheLengthOfAReply) {
  EXPECT_EQ(chat(with(R"("n_predict":9)")).max_tokens, 9);
  EXPECT_EQ(chat(with(R"("n_predict":9,"max_tokens":5)")).max_tokens, 5);
  EXPECT_EQ(chat(with(R"("max_tokens":-1)")).max_tokens, std::nullopt);
  EXPECT_EQ(chat(with(R"("max_tokens":5,"max_completion_tokens":-1)")).max_tokens, std::nullopt);
}

TEST(ChatRequest, WhatClientsSendAndNobodyNeedsIsIgnored) {
  chat(with(
      R"("user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto","safety_identifier":7,
               "modalities":["text"],"parallel_tool_calls":true,"nobody knows":[{}])"));
}

TEST(ChatRequest, MessagesOfEveryKind) {
  const ChatRequest r = chat(R"({"messages":[
    {"role":"developer","content":"Be brief."},
    {"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}],"name":"Ann"},
    {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
       {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
    {"role":"tool","tool_call_id":"c1","content":"42"}]})");
  ASSERT_EQ(r.messages.size(), 4u);
  EXPECT_EQ(r.messages[1].parts, (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(r.messages[1].is_array);
  EXPECT_EQ(r.messages[2].reasoning, "hm");
  EXPECT_EQ(r.messages[2].tool_calls.at(0).arguments, R"({"a":1})");
  EXPECT_EQ(r.messages[3].tool_call_id, "c1");
}

// Wrong types and ranges, and the field that the refusal must name.
TEST(ChatRequest, RefusalsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":1e9)", "temperature"},
      {R"("temperature":-1)", "temperature"},
      {R"("max_tokens":-5)", "max_tokens"},
      {R"("max_tokens":1.5)", "max_tokens"},
      {R"("max_completion_tokens":99999999999999999999)", "max_completion_tokens"},
      {R"("n":0)", "n"},
      {R"("n":33)", "n"},
      {R"("top_p":1.01)", "top_p"},
      {R"("stream":"yes")", "stream"},
      {R"("stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("stop":7)", "stop"},
      {R"("stop":[7])", "stop"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","0","1","2","3","4","5","6","7"])", "stop"},
      {R"("seed":1.5)", "seed"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"5":101})", "logit_bias"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("top_logprobs":3)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"type":"retrieval"}])", "tools[0].type"},
      {R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":{"$ref":"#/x"}}}])",
       "tools[0].function.parameters"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":"maybe")", "tool_choice"},
      {R"("tool_choice":{"type":"function","function":{"name":"g"}})", "tool_choice"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("functions":[])", "functions"},
      {R"("modalities":["audio"])", "modalities"},
      {R"("conversation":"")", "conversation"},
      {R"("conversation":"c","n":2)", "n"},
      {R"("chat_template_kwargs":{"enable_thinking":"no"})",
       "chat_template_kwargs.enable_thinking"},
  };
  for (const auto& [fields, param] : cases) {
    const ApiError error = refusal(with(fields));
    EXPECT_EQ(error.param, param) << fields << ": " << error.message;
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.type, "invalid_request_error");
    EXPECT_FALSE(error.code.empty());
    EXPECT_EQ(error.message.find('\n'), std::string::npos);
  }
}

TEST(ChatRequest, RefusedMessages) {
  const auto of = [](const std::string& messages) {
    return refusal("{\"messages\":" + messages + "}").param;
  };
  EXPECT_EQ(refusal("{}").param, "messages");
  EXPECT_EQ(of("[]"), "messages");
  EXPECT_EQ(of("\"hi\""), "messages");
  EXPECT_EQ(of("[7]"), "messages[0]");
  EXPECT_EQ(of(R"([{"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(of(R"([{"role":"wizard","content":"x"}])"), "messages[0].role");
  EXPECT_EQ(of(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(of(R"([{"role":"user","content":7}])"), "messages[0].content");
  EXPECT_EQ(of(R"([{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content[0].text");
  const ApiError image = refusal(
      R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})");
  EXPECT_EQ(image.param, "messages[0].content[0].type");
  EXPECT_NE(image.message.find("text only"), std::string::npos);
}

TEST(ChatRequest, BodiesThatAreNotJson) {
  for (const char* body :
       {"", "x", "{\"messages\":", "{\"temperature\":NaN}", "{\"n\":1e999}", "{\"a\":\"\xff\"}"}) {
    EXPECT_EQ(refusal(body).code, "invalid_json") << body;
  }
  EXPECT_EQ(refusal(std::string(100000, '[')).code, "invalid_json");
  EXPECT_EQ(refusal("[]").code, "invalid_type");
}

TEST(ChatRequest, ToolsAndTheirChoice) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","description":"d",
         "parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer"}}}}},
         {"type":"function","function":{"name":"g"}}])";
  ChatRequest r = chat(with(tools));
  ASSERT_EQ(r.tools.size(), 2u);
  EXPECT_EQ(r.tools[0].parameters.find("\"z\"") < r.tools[0].parameters.find("\"a\""), true);
  EXPECT_EQ(r.tool_choice, ToolChoice::automatic);
  r = chat(with(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"));
  ASSERT_EQ(r.tools.size(), 1u);
  EXPECT_EQ(r.tools[0].name, "g");
  EXPECT_EQ(r.tool_choice, ToolChoice::required);
  r = chat(with(tools + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",
                           "tools":[{"type":"function","function":{"name":"f"}}]}})"));
  EXPECT_EQ(r.tools.size(), 1u);
  EXPECT_EQ(r.tool_choice, ToolChoice::automatic);
  EXPECT_EQ(refusal(with(tools + R"(,"response_format":{"type":"json_object"})")).param,
            "response_format");
  EXPECT_EQ(refusal(with(tools + R"(,"grammar":"root ::= \"a\"")")).param, "grammar");
}

TEST(ChatRequest, ResponseFormats) {
  EXPECT_EQ(chat(with(R"("response_format":{"type":"text"})")).json_schema, "");
  EXPECT_EQ(chat(with(R"("response_format":{"type":"json_object"})")).json_schema,
            R"({"type":"object"})");
  EXPECT_EQ(chat(with(R"("response_format":{"type":"json_schema","json_schema":
                         {"name":"n","strict":true,"schema":{"type":"integer"}}})"))
                .json_schema,
            R"({"type":"integer"})");
}

TEST(CompletionRequest, PromptsOfEveryKind) {
  const auto prompts = [](const std::string& prompt) {
    Parsed<CompletionRequest> parsed = parse_completion_request("{\"prompt\":" + prompt + "}");
    auto* request = std::get_if<CompletionRequest>(&parsed);
    return request ? request->prompts : std::vector<CompletionRequest::Prompt>{};
  };
  using Tokens = std::vector<int32_t>;
  EXPECT_EQ(prompts("\"a\""), (std::vector<CompletionRequest::Prompt>{"a"}));
  EXPECT_EQ(prompts("[\"a\",\"b\"]"), (std::vector<CompletionRequest::Prompt>{"a", "b"}));
  EXPECT_EQ(prompts("[1,2]"), (std::vector<CompletionRequest::Prompt>{Tokens{1, 2}}));
  EXPECT_EQ(prompts("[[1],[2,3]]"),
            (std::vector<CompletionRequest::Prompt>{Tokens{1}, Tokens{2, 3}}));
  for (const char* bad : {"7", "[]", "{}", "[true]", "[1,\"a\"]", "[-1]", "[1.5]", "null"}) {
    EXPECT_TRUE(prompts(bad).empty()) << bad;
  }
}

TEST(CompletionRequest, RefusalsNameTheField) {
  const auto param = [](const std::string& fields) {
    Parsed<CompletionRequest> parsed =
        parse_completion_request("{\"prompt\":\"a\"," + fields + "}");
    auto* error = std::get_if<ApiError>(&parsed);
    return error ? error->param : "accepted";
  };
  EXPECT_EQ(param(R"("best_of":1,"n":2)"), "best_of");
  EXPECT_EQ(param(R"("best_of":2,"stream":true)"), "best_of");
  EXPECT_EQ(param(R"("best_of":2,"n":2,"stream":true)"), "accepted");
  EXPECT_EQ(param(R"("echo":true,"logprobs":1)"), "echo");
  EXPECT_EQ(param(R"("echo":true)"), "accepted");
  EXPECT_EQ(param(R"("suffix":"end")"), "suffix");
  EXPECT_EQ(param(R"("suffix":"")"), "accepted");
  EXPECT_EQ(param(R"("logprobs":true)"), "logprobs");
  EXPECT_EQ(param(R"("n":2,"conversation":"c")"), "conversation");
}

TEST(OtherRequests, TokenizeAndDetokenize) {
  const auto tokenize = parse_tokenize_request(R"({"content":"x","with_pieces":true})");
  EXPECT_TRUE(std::get<TokenizeRequest>(tokenize).with_pieces);
  EXPECT_EQ(std::get<ApiError>(parse_tokenize_request("{}")).param, "content");
  EXPECT_EQ(std::get<0>(parse_detokenize_request(R"({"tokens":[1,2]})")),
            (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(std::get<ApiError>(parse_detokenize_request(R"({"tokens":["a"]})")).param, "tokens");
}

TEST(ConversationNames, AreBoundedText) {
  EXPECT_FALSE(conversation_name_problem("my chat/7 \xC3\xA9"));
  for (const std::string& bad : {std::string(), std::string(129, 'a'), std::string("a\nb"),
                                 std::string("\xff"), std::string("a\0b", 3)}) {
    EXPECT_TRUE(conversation_name_problem(bad)) << bad;
  }
}

}  // namespace
}  // namespace weir::openai

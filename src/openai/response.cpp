#include "openai/response.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace weir::openai {
namespace {

// OpenAI's stand-in for minus infinity, which JSON does not have.
constexpr float kLeastLogprob = -9999.0f;

float finite(float logprob) { return std::isfinite(logprob) ? logprob : kLeastLogprob; }

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json usage_json(const UsageCounts& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.reasoning_tokens) {
    json["completion_tokens_details"] = {{"reasoning_tokens", *usage.reasoning_tokens}};
  }
  return json;
}

Json facts_json(const ChoiceFacts& facts) {
  const auto rounded = [](double value) { return std::round(value * 1000) / 1000; };
  return {{"finish", facts.finish},
          {"prompt_ms", rounded(facts.prompt_ms)},
          {"prompt_tokens_per_second", rounded(facts.prompt_tokens_per_second)},
          {"reply_ms", rounded(facts.reply_ms)},
          {"tokens_per_second", rounded(facts.tokens_per_second)},
          {"reuse",
           {{"miss", facts.miss},
            {"first_new_token", facts.first_new_token},
            {"restart_at", facts.restart_at},
            {"healed_tokens", facts.healed_tokens}}}};
}

Json piece_json(const PieceLogprob& piece) {
  Json bytes = Json::array();
  for (const char c : piece.bytes) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", piece.bytes}, {"logprob", finite(piece.logprob)}, {"bytes", std::move(bytes)}};
}

Json chat_logprobs(const std::vector<LogprobEntry>& entries) {
  Json content = Json::array();
  for (const LogprobEntry& entry : entries) {
    Json one = piece_json(entry.chosen);
    one["top_logprobs"] = Json::array();
    for (const PieceLogprob& piece : entry.top) one["top_logprobs"].push_back(piece_json(piece));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json completion_logprobs(const std::vector<LogprobEntry>& entries, size_t offset) {
  Json json = {{"tokens", Json::array()},
               {"token_logprobs", Json::array()},
               {"top_logprobs", Json::array()},
               {"text_offset", Json::array()}};
  for (const LogprobEntry& entry : entries) {
    json["tokens"].push_back(entry.chosen.bytes);
    json["token_logprobs"].push_back(finite(entry.chosen.logprob));
    Json top = Json::object();
    for (const PieceLogprob& piece : entry.top) top[piece.bytes] = finite(piece.logprob);
    json["top_logprobs"].push_back(std::move(top));
    json["text_offset"].push_back(offset);
    offset += entry.chosen.bytes.size();
  }
  return json;
}

Json call_json(const std::string& id, const std::string& name, const std::string& arguments) {
  return {
      {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

Json head_json(const AnswerHead& head, const char* object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", head.fingerprint}};
}

Json event_json(const AnswerHead& head, bool is_chat) {
  return head_json(head, is_chat ? "chat.completion.chunk" : "text_completion");
}

Json chat_event(const AnswerHead& head, size_t index, Json delta) {
  Json event = event_json(head, true);
  event["choices"] = Json::array({{{"index", index},
                                   {"delta", std::move(delta)},
                                   {"logprobs", nullptr},
                                   {"finish_reason", nullptr}}});
  return event;
}

Json completion_event(const AnswerHead& head, size_t index, const std::string& text) {
  Json event = event_json(head, false);
  event["choices"] = Json::array(
      {{{"index", index}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", nullptr}}});
  return event;
}

}  // namespace

std::string random_id(std::string_view prefix) {
  static constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  thread_local std::mt19937_64 generator{std::random_device{}()};
  std::uniform_int_distribution<size_t> pick(0, kLetters.size() - 1);
  std::string id(prefix);
  for (int i = 0; i < 32; ++i) id += kLetters[pick(generator)];
  return id;
}

Json chat_answer(const AnswerHead& head, const std::vector<FinishedChoice>& choices,
                 const UsageCounts& usage) {
  Json answer = head_json(head, "chat.completion");
  answer["choices"] = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const FinishedChoice& choice = choices[i];
    Json message = {{"role", "assistant"}, {"content", choice.content}, {"refusal", nullptr}};
    if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
    if (!choice.tool_calls.empty()) {
      message["content"] = text_or_null(choice.content);
      message["tool_calls"] = Json::array();
      for (const ToolCall& call : choice.tool_calls) {
        message["tool_calls"].push_back(call_json(call.id, call.name, call.arguments));
      }
    }
    answer["choices"].push_back(
        {{"index", i},
         {"message", std::move(message)},
         {"logprobs", choice.has_logprobs ? chat_logprobs(choice.logprobs) : Json()},
         {"finish_reason", choice.finish_reason},
         {"weir", facts_json(choice.facts)}});
  }
  answer["usage"] = usage_json(usage);
  return answer;
}

Json completion_answer(const AnswerHead& head, const std::vector<FinishedChoice>& choices,
                       const std::vector<std::string>& echoes, const UsageCounts& usage) {
  Json answer = head_json(head, "text_completion");
  answer["choices"] = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const FinishedChoice& choice = choices[i];
    const std::string echo = i < echoes.size() ? echoes[i] : std::string();
    answer["choices"].push_back(
        {{"index", i},
         {"text", echo + choice.content},
         {"logprobs", choice.has_logprobs ? completion_logprobs(choice.logprobs, 0) : Json()},
         {"finish_reason", choice.finish_reason},
         {"weir", facts_json(choice.facts)}});
  }
  answer["usage"] = usage_json(usage);
  return answer;
}

Json chat_role_event(const AnswerHead& head, size_t index) {
  return chat_event(head, index, {{"role", "assistant"}, {"content", ""}});
}

std::vector<Json> chat_delta_events(const AnswerHead& head, size_t index,
                                    const ChoiceDelta& delta) {
  std::vector<Json> events;
  if (!delta.reasoning.empty()) {
    events.push_back(chat_event(head, index, {{"reasoning_content", delta.reasoning}}));
  }
  if (!delta.content.empty()) {
    events.push_back(chat_event(head, index, {{"content", delta.content}}));
  }
  for (const ToolCallDelta& call : delta.tool_calls) {
    Json json = {{"index", call.index}};
    if (call.id.empty()) {
      json["function"] = {{"arguments", call.arguments}};
    } else {
      json.update(call_json(call.id, call.name, call.arguments));
    }
    events.push_back(chat_event(head, index, {{"tool_calls", Json::array({std::move(json)})}}));
  }
  if (!delta.logprobs.empty()) {
    if (events.empty()) events.push_back(chat_event(head, index, Json::object()));
    events.front()["choices"][0]["logprobs"] = chat_logprobs(delta.logprobs);
  }
  return events;
}

Json chat_finish_event(const AnswerHead& head, size_t index, const std::string& finish_reason,
                       const ChoiceFacts& facts) {
  Json event = chat_event(head, index, Json::object());
  event["choices"][0]["finish_reason"] = finish_reason;
  event["choices"][0]["weir"] = facts_json(facts);
  return event;
}

Json completion_delta_event(const AnswerHead& head, size_t index, const ChoiceDelta& delta,
                            size_t text_offset) {
  Json event = completion_event(head, index, delta.content);
  if (!delta.logprobs.empty()) {
    event["choices"][0]["logprobs"] = completion_logprobs(delta.logprobs, text_offset);
  }
  return event;
}

Json completion_finish_event(const AnswerHead& head, size_t index, const std::string& finish_reason,
                             const ChoiceFacts& facts) {
  Json event = completion_event(head, index, "");
  event["choices"][0]["finish_reason"] = finish_reason;
  event["choices"][0]["weir"] = facts_json(facts);
  return event;
}

Json usage_event(const AnswerHead& head, bool is_chat, const UsageCounts& usage) {
  Json event = event_json(head, is_chat);
  event["choices"] = Json::array();
  event["usage"] = usage_json(usage);
  return event;
}

Json progress_event(const AnswerHead& head, bool is_chat, size_t index, int64_t total,
                    int64_t cached, int64_t processed, double time_ms) {
  Json event =
      is_chat ? chat_event(head, index, Json::object()) : completion_event(head, index, "");
  event["prompt_progress"] = {{"total", total},
                              {"cache", cached},
                              {"processed", processed},
                              {"time_ms", std::round(time_ms)}};
  return event;
}

std::string sse(const Json& data) { return "data: " + dump(data) + "\n\n"; }

}  // namespace weir::openai

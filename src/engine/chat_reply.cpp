#include "engine/chat_reply.h"

#include <exception>
#include <optional>
#include <random>

#include "engine/chat_format.h"

namespace weir {
namespace {

std::string random_call_id() {
  static constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  thread_local std::mt19937_64 generator{std::random_device{}()};
  std::uniform_int_distribution<size_t> pick(0, kLetters.size() - 1);
  std::string id = "call_";
  for (int i = 0; i < 24; ++i) id += kLetters[pick(generator)];
  return id;
}

// Nothing if the text does not (yet) follow the format.
std::optional<ChatReply> parse(const ChatFormat& format, const std::string& text, bool is_partial) {
  try {
    common_chat_msg message = common_chat_parse(text, is_partial, format.params);
    ChatReply reply;
    reply.reasoning = std::move(message.reasoning_content);
    reply.content = std::move(message.content);
    for (common_chat_tool_call& call : message.tool_calls) {
      reply.tool_calls.push_back(
          {std::move(call.id), std::move(call.name), std::move(call.arguments)});
    }
    return reply;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

// Whether what has been sent of a call is the beginning of it.
bool continues(const ChatToolCall& before, const ChatToolCall& now) {
  return before.name == now.name && starts_with(now.arguments, before.arguments);
}

}  // namespace

ChatReplyReader::ChatReplyReader(std::shared_ptr<const ChatFormat> format)
    : format_(std::move(format)) {}

ChatReplyDelta ChatReplyReader::push(std::string_view text) {
  if (text.empty()) return {};
  text_ += text;
  return read(true);
}

ChatReplyDelta ChatReplyReader::finish(bool is_whole) {
  ChatReplyDelta delta = read(!is_whole);
  if (!delta.empty() || !reply_.content.empty() || !reply_.tool_calls.empty() ||
      !reply_.reasoning.empty() || text_.empty()) {
    return delta;
  }
  // Nothing in it follows the format.
  return take({.reasoning = {}, .content = text_, .tool_calls = {}});
}

ChatReplyDelta ChatReplyReader::read(bool is_partial) {
  std::optional<ChatReply> next = parse(*format_, text_, is_partial);
  if (!next && !is_partial) next = parse(*format_, text_, true);
  // A call is told when its name is known: it can not be taken back.
  while (next && is_partial && !next->tool_calls.empty() && next->tool_calls.back().name.empty()) {
    next->tool_calls.pop_back();
  }
  return next ? take(std::move(*next)) : ChatReplyDelta{};
}

// What was sent stays sent: a reading that contradicts it is left out, and the next one may agree
// again.
ChatReplyDelta ChatReplyReader::take(ChatReply next) {
  ChatReplyDelta delta;
  if (!starts_with(next.reasoning, reply_.reasoning) ||
      !starts_with(next.content, reply_.content) ||
      next.tool_calls.size() < reply_.tool_calls.size()) {
    return delta;
  }
  for (size_t i = 0; i < reply_.tool_calls.size(); ++i) {
    if (!continues(reply_.tool_calls[i], next.tool_calls[i])) return delta;
  }
  delta.reasoning = next.reasoning.substr(reply_.reasoning.size());
  delta.content = next.content.substr(reply_.content.size());
  for (size_t i = 0; i < next.tool_calls.size(); ++i) {
    ChatToolCall& call = next.tool_calls[i];
    if (i < reply_.tool_calls.size()) {
      call.id = reply_.tool_calls[i].id;
      std::string more = call.arguments.substr(reply_.tool_calls[i].arguments.size());
      if (!more.empty()) delta.tool_calls.push_back({i, {}, {}, std::move(more)});
    } else {
      if (call.id.empty()) call.id = random_call_id();
      delta.tool_calls.push_back({i, call.id, call.name, call.arguments});
    }
  }
  reply_ = std::move(next);
  return delta;
}

}  // namespace weir

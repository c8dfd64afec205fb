#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace weir {

struct ChatToolCall {
  std::string id = {}, name = {};
  std::string arguments = {};  // JSON as text
};

struct ChatMessage {
  std::string role;  // "system", "developer", "user", "assistant", "tool"
  std::string content;
  std::vector<std::string> parts = {};  // instead of content, where it came in parts
  std::string reasoning = {};           // of an assistant
  std::vector<ChatToolCall> tool_calls = {};
  std::string tool_call_id = {}, name = {};  // of a tool's answer
};

struct ChatTool {
  std::string name, description;
  std::string parameters;  // JSON schema of its arguments as text
};

enum class ChatToolChoice { automatic, none, required };

// What a template is asked to write.
struct ChatInput {
  std::vector<ChatMessage> messages = {};
  std::vector<ChatTool> tools = {};
  ChatToolChoice tool_choice = ChatToolChoice::automatic;
  bool parallel_tool_calls = true;
  std::string json_schema = {};  // of the reply, as text; empty: none. Not beside tools
  bool enable_thinking = true;
  std::map<std::string, std::string> arguments = {};  // for the template: name, JSON as text
};

struct ChatFormat;  // how a reply is read: chat_reply.h

// A conversation as the model reads it, and what is known of the reply to come.
struct ChatPrompt {
  std::string text;
  std::string reply_start;  // the end of `text` that the template writes for the model
  // GBNF that the reply follows, reply_start included; empty: none. With triggers it binds from
  // the first of them on.
  std::string grammar;
  std::vector<std::string> trigger_words, trigger_patterns;
  std::vector<std::string> visible_words;  // control tokens that the reader needs to see
  std::vector<std::string> stop;
  std::string thinking_start;  // empty: the template knows no reasoning
  std::vector<std::string> thinking_ends;
  std::shared_ptr<const ChatFormat> format;
};

}  // namespace weir

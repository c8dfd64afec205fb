#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat_message.h"

namespace weir {

// A reply taken apart.
struct ChatReply {
  std::string reasoning, content;
  std::vector<ChatToolCall> tool_calls;
};

// What a reply gained.
struct ChatReplyDelta {
  struct Call {
    size_t index = 0;
    std::string id, name;  // with the first delta of a call
    std::string arguments;
  };
  std::string reasoning, content;
  std::vector<Call> tool_calls;

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

// Reads a reply as it comes: reasoning, text and tool calls, as the template writes them. Reads
// everything again at each push; give it as much at once as there is.
class ChatReplyReader {
 public:
  explicit ChatReplyReader(std::shared_ptr<const ChatFormat> format);

  ChatReplyDelta push(std::string_view text);
  // The end. `is_whole`: the model ended the reply itself; one that was cut off may end anywhere.
  // What the format has no place for is text.
  ChatReplyDelta finish(bool is_whole);

  // Everything so far. Calls have ids.
  const ChatReply& reply() const { return reply_; }
  const std::string& text() const { return text_; }

 private:
  ChatReplyDelta read(bool is_partial);
  ChatReplyDelta take(ChatReply next);

  std::shared_ptr<const ChatFormat> format_;
  std::string text_;
  ChatReply reply_;
};

}  // namespace weir

#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "engine/chat_message.h"

struct llama_model;

namespace weir {

// The model's own chat template (Jinja, from its file), run by llama-common. Any thread may use it.
class ChatTemplate {
 public:
  // `model` may hold a vocabulary only; `source` replaces its template. Errors: unsupported if
  // there is no usable one.
  static Result<ChatTemplate> create(const llama_model* model, const std::string& source = {});
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // The prompt text of a conversation, ready for the assistant's reply when `add_reply_start`.
  // Contains special tokens as text, but not the begin-of-sequence token if the vocabulary adds it:
  // tokenize with add_bos and parse_special.
  // Errors: invalid_input with the template's own complaint (roles that must alternate, ...).
  Result<std::string> render(std::span<const ChatMessage> messages, bool add_reply_start) const;

  // The prompt with everything that belongs to it. Tools are written in the template's own way or,
  // where it has none, in one of weir's. Schemas must have been checked: llama-common does not
  // bound them. Errors: invalid_input as above, or for a schema that has no grammar.
  Result<ChatPrompt> apply(const ChatInput& input) const;

  // Whether tools are written in the template's own way.
  bool knows_tools() const;

  // The length of the prefix of `prompt.text` that any other last message of the user would leave
  // as it is. 0 if there is no user's message, or the template refuses.
  size_t last_turn_start(const ChatInput& input, const ChatPrompt& prompt) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir

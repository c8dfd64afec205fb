#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/status.h"

struct llama_model;

namespace weir {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// The model's own chat template (Jinja, from its file), run by llama-common.
class ChatTemplate {
 public:
  // `model` may hold a vocabulary only. Errors: unsupported if the file has no usable template.
  static Result<ChatTemplate> create(const llama_model* model);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // The prompt text of a conversation, ready for the assistant's reply when `add_reply_start`.
  // Contains special tokens as text, but not the begin-of-sequence token if the vocabulary adds it:
  // tokenize with add_bos and parse_special.
  // Errors: invalid_input with the template's own complaint (roles that must alternate, ...).
  Result<std::string> render(std::span<const ChatMessage> messages, bool add_reply_start) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir

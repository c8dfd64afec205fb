#include "engine/chat_template.h"

#include <exception>

#include "chat.h"
#include "llama.h"

namespace weir {

struct ChatTemplate::Impl {
  common_chat_templates_ptr templates;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::create(const llama_model* model) {
  if (llama_model_chat_template(model, nullptr) == nullptr) {
    return Status(Code::unsupported,
                  "the model file has no chat template; use 'weir run' with a plain prompt");
  }
  try {
    auto impl = std::make_unique<Impl>();
    impl->templates = common_chat_templates_init(model, "");
    return ChatTemplate(std::move(impl));
  } catch (const std::exception& e) {
    return Status(Code::unsupported,
                  std::string("the model's chat template is unusable: ") + e.what());
  }
}

Result<std::string> ChatTemplate::render(std::span<const ChatMessage> messages,
                                         bool add_reply_start) const {
  common_chat_templates_inputs inputs;
  for (const ChatMessage& message : messages) {
    common_chat_msg entry;
    entry.role = message.role;
    entry.content = message.content;
    inputs.messages.push_back(std::move(entry));
  }
  inputs.add_generation_prompt = add_reply_start;
  try {
    return common_chat_templates_apply(impl_->templates.get(), inputs).prompt;
  } catch (const std::exception& e) {
    return Status(Code::invalid_input,
                  std::string("the chat template refuses these messages: ") + e.what());
  }
}

}  // namespace weir

#include "engine/chat_template.h"

#include <algorithm>
#include <exception>
#include <mutex>

#include "engine/chat_format.h"
#include "llama.h"

namespace weir {
namespace {

common_chat_msg library_message(const ChatMessage& message) {
  common_chat_msg out;
  out.role = message.role;
  out.content = message.content;
  for (const std::string& part : message.parts) out.content_parts.push_back({"text", part});
  out.reasoning_content = message.reasoning;
  for (const ChatToolCall& call : message.tool_calls) {
    out.tool_calls.push_back({call.name, call.arguments, call.id});
  }
  out.tool_call_id = message.tool_call_id;
  out.tool_name = message.name;
  return out;
}

ChatPrompt taken_over(common_chat_params&& from) {
  ChatPrompt prompt;
  auto format = std::make_shared<ChatFormat>(ChatFormat{common_chat_parser_params(from)});
  format->params.reasoning_format = COMMON_REASONING_FORMAT_AUTO;
  if (!from.parser.empty()) format->params.parser.load(from.parser);
  prompt.format = std::move(format);
  prompt.text = std::move(from.prompt);
  prompt.reply_start = std::move(from.generation_prompt);
  prompt.grammar = std::move(from.grammar);
  if (from.grammar_lazy) {
    for (const common_grammar_trigger& trigger : from.grammar_triggers) {
      switch (trigger.type) {
        case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN:
        case COMMON_GRAMMAR_TRIGGER_TYPE_WORD:
          prompt.trigger_words.push_back(trigger.value);
          break;
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN:
          prompt.trigger_patterns.push_back(trigger.value);
          break;
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL:
          prompt.trigger_patterns.push_back("^" + trigger.value + "$");
          break;
      }
    }
    // Without a sign that a call begins, nothing can be asked of the reply.
    if (prompt.trigger_words.empty() && prompt.trigger_patterns.empty()) prompt.grammar.clear();
  }
  prompt.visible_words = std::move(from.preserved_tokens);
  prompt.stop = std::move(from.additional_stops);
  if (!from.thinking_end_tags.empty()) {
    prompt.thinking_start = std::move(from.thinking_start_tag);
    prompt.thinking_ends = std::move(from.thinking_end_tags);
  }
  return prompt;
}

Status refusal(const std::exception& e) {
  std::string what = e.what();
  std::replace(what.begin(), what.end(), '\n', ' ');
  return Status(Code::invalid_input, "the chat template refuses these messages: " + what);
}

}  // namespace

common_chat_templates_inputs chat_inputs(const ChatInput& input) {
  common_chat_templates_inputs out;
  for (const ChatMessage& message : input.messages) {
    out.messages.push_back(library_message(message));
  }
  for (const ChatTool& tool : input.tools) {
    out.tools.push_back({tool.name, tool.description, tool.parameters});
  }
  switch (input.tool_choice) {
    case ChatToolChoice::automatic:
      out.tool_choice = COMMON_CHAT_TOOL_CHOICE_AUTO;
      break;
    case ChatToolChoice::none:
      out.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
      break;
    case ChatToolChoice::required:
      out.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
      break;
  }
  out.parallel_tool_calls = input.parallel_tool_calls;
  out.json_schema = input.json_schema;
  out.reasoning_format = COMMON_REASONING_FORMAT_AUTO;
  out.enable_thinking = input.enable_thinking;
  out.chat_template_kwargs = input.arguments;
  return out;
}

struct ChatTemplate::Impl {
  common_chat_templates_ptr templates;
  bool knows_tools = false;
  mutable std::mutex mutex;  // llama-common tells templates the date through localtime()

  common_chat_params run(const common_chat_templates_inputs& inputs) const {
    const std::lock_guard lock(mutex);
    return common_chat_templates_apply(templates.get(), inputs);
  }
  common_chat_params apply(const ChatInput& input) const {
    const bool has_tools = !input.tools.empty();
    if (!has_tools || knows_tools) return run(chat_inputs(input));
    common_chat_params params = run(chat_inputs(with_tools_as_text(input)));
    if (input.tool_choice != ChatToolChoice::none) use_tools_as_text(input, params);
    return params;
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::create(const llama_model* model, const std::string& source) {
  if (source.empty() && llama_model_chat_template(model, nullptr) == nullptr) {
    return Status(Code::unsupported,
                  "the model file has no chat template; use 'weir run' with a plain prompt");
  }
  try {
    auto impl = std::make_unique<Impl>();
    impl->templates = common_chat_templates_init(model, source);
    const auto abilities = common_chat_templates_get_caps(impl->templates.get());
    const auto has = [&](const char* name) {
      const auto found = abilities.find(name);
      return found != abilities.end() && found->second;
    };
    impl->knows_tools = has("supports_tools") && has("supports_tool_calls");
    return ChatTemplate(std::move(impl));
  } catch (const std::exception& e) {
    return Status(Code::unsupported,
                  std::string("the model's chat template is unusable: ") + e.what());
  }
}

Result<std::string> ChatTemplate::render(std::span<const ChatMessage> messages,
                                         bool add_reply_start) const {
  ChatInput input;
  input.messages.assign(messages.begin(), messages.end());
  common_chat_templates_inputs inputs = chat_inputs(input);
  inputs.add_generation_prompt = add_reply_start;
  try {
    return impl_->run(inputs).prompt;
  } catch (const std::exception& e) {
    return refusal(e);
  }
}

Result<ChatPrompt> ChatTemplate::apply(const ChatInput& input) const {
  try {
    return taken_over(impl_->apply(input));
  } catch (const std::exception& e) {
    return refusal(e);
  }
}

bool ChatTemplate::knows_tools() const { return impl_->knows_tools; }

size_t ChatTemplate::last_turn_start(const ChatInput& input, const ChatPrompt& prompt) const {
  ChatInput other = input;
  const auto last = std::find_if(other.messages.rbegin(), other.messages.rend(),
                                 [](const ChatMessage& m) { return m.role == "user"; });
  if (last == other.messages.rend()) return 0;
  // Anything that differs from the first letter on: templates cut white space off.
  const std::string& text = last->parts.empty() ? last->content : last->parts.front();
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_x = first != std::string::npos && text[first] == 'x';
  last->parts.clear();
  last->content = is_x ? "y" : "x";
  try {
    const std::string changed = impl_->apply(other).prompt;
    const auto end = prompt.text.begin() +
                     static_cast<std::ptrdiff_t>(std::min(prompt.text.size(), changed.size()));
    return static_cast<size_t>(std::mismatch(prompt.text.begin(), end, changed.begin()).first -
                               prompt.text.begin());
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace weir

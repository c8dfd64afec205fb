// Tool calls with templates that have no word for them.
#include <nlohmann/json.hpp>

#include "chat-peg-parser.h"
#include "engine/chat_format.h"
#include "json-schema-to-grammar.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCallStart = "<tool_call>";
constexpr const char* kCallEnd = "</tool_call>";

std::string text_of(const ChatMessage& message) {
  std::string text = message.content;
  for (const std::string& part : message.parts) {
    if (!text.empty()) text += '\n';
    text += part;
  }
  return text;
}

// A string that is JSON as JSON; else as a string.
Json as_json(const std::string& text) {
  Json parsed = Json::parse(text, nullptr, false);
  return parsed.is_discarded() ? Json(text) : parsed;
}

std::string describe(const ChatInput& input) {
  std::string text = "You can use these tools:\n";
  for (const ChatTool& tool : input.tools) {
    text += Json{{"name", tool.name},
                 {"description", tool.description},
                 {"parameters", as_json(tool.parameters)}}
                .dump(-1, ' ', false, Json::error_handler_t::replace) +
            "\n";
  }
  text += std::string("To use one, write\n") + kCallStart +
          "{\"name\": its name, \"arguments\": an object with its parameters}" + kCallEnd + "\n";
  if (input.parallel_tool_calls) {
    text += "with a comma between the objects if there are several. ";
  }
  if (input.tool_choice == ChatToolChoice::required) {
    text += "Your reply must use a tool.";
  } else {
    text += "Answer in words when no tool is needed.";
  }
  return text;
}

std::string call_text(const std::vector<ChatToolCall>& calls) {
  std::string text;
  for (const ChatToolCall& call : calls) {
    text += text.empty() ? kCallStart : ", ";
    text += Json{{"name", call.name}, {"arguments", as_json(call.arguments)}}.dump(
        -1, ' ', false, Json::error_handler_t::replace);
  }
  return text + kCallEnd;
}

void append(std::vector<ChatMessage>& messages, const std::string& role, const std::string& text) {
  // Several answers of tools, and what the user says then, are one turn: many templates insist
  // that roles alternate.
  if (!messages.empty() && messages.back().role == role && role != "system") {
    messages.back().content += "\n" + text;
  } else {
    messages.push_back({role, text});
  }
}

}  // namespace

ChatInput with_tools_as_text(const ChatInput& input) {
  ChatInput out = input;
  out.tools.clear();
  out.messages.clear();
  const std::string tools =
      input.tool_choice == ChatToolChoice::none ? std::string() : describe(input);
  size_t next = 0;
  std::string system;
  if (!input.messages.empty() &&
      (input.messages[0].role == "system" || input.messages[0].role == "developer")) {
    system = text_of(input.messages[next++]);
  }
  if (!system.empty() && !tools.empty()) system += "\n\n";
  system += tools;
  if (!system.empty()) out.messages.push_back({"system", system});
  for (; next < input.messages.size(); ++next) {
    const ChatMessage& message = input.messages[next];
    std::string text = text_of(message);
    if (message.role == "tool") {
      append(out.messages, "user", "<tool_result>\n" + text + "\n</tool_result>");
    } else if (!message.tool_calls.empty()) {
      if (!text.empty()) text += '\n';
      append(out.messages, "assistant", text + call_text(message.tool_calls));
    } else {
      append(out.messages, message.role, text);
    }
  }
  return out;
}

void use_tools_as_text(const ChatInput& input, common_chat_params& rendered) {
  ChatInput no_schema = input;
  no_schema.json_schema.clear();
  const common_json tools = common_chat_tools_to_json_oaicompat(chat_inputs(no_schema).tools);
  const bool is_required = input.tool_choice == ChatToolChoice::required;

  const common_peg_arena reader = build_chat_peg_parser([&](common_chat_peg_builder& p) {
    common_peg_parser reasoning = p.eps();
    if (!rendered.thinking_end_tags.empty()) {
      const std::string& end = rendered.thinking_end_tags.front();
      const common_peg_parser body = p.reasoning(p.until(end)) + p.literal(end) + p.space();
      reasoning = p.optional(rendered.thinking_start_tag.empty()
                                 ? body
                                 : p.literal(rendered.thinking_start_tag) + body);
    }
    const common_peg_parser calls = p.standard_json_tools(
        kCallStart, kCallEnd, tools, input.parallel_tool_calls, is_required, "name", "arguments");
    const common_peg_parser start =
        p.prefix(rendered.generation_prompt, rendered.thinking_start_tag) + reasoning;
    if (is_required) return start + calls + p.end();
    return start + p.optional(p.content(p.until(kCallStart))) + calls + p.end();
  });

  rendered.format = COMMON_CHAT_FORMAT_PEG_NATIVE;
  rendered.parser = reader.save();
  rendered.grammar_lazy = !is_required;
  rendered.grammar_triggers = {{COMMON_GRAMMAR_TRIGGER_TYPE_WORD, kCallStart}};
  rendered.grammar = build_grammar([&](const common_grammar_builder& builder) {
    for (const common_json& tool : tools) {
      common_json schema = tool.at("function").at("parameters");
      builder.resolve_refs(schema);
    }
    reader.build_grammar(builder, rendered.grammar_lazy);
  });
}

}  // namespace weir

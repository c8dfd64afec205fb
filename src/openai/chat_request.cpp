#include <fmt/format.h>

#include <algorithm>

#include "base/untrusted_json.h"
#include "openai/generation_request.h"
#include "openai/schema_check.h"

namespace weir::openai {
namespace {

constexpr size_t kAnyLength = SIZE_MAX;
constexpr size_t kLongestToolName = 64;

std::string at(std::string_view array, size_t index) { return fmt::format("{}[{}]", array, index); }

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestToolName &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
             std::string_view::npos;
}

class ChatReader {
 public:
  explicit ChatReader(const Json& body) : fields_(body, "", error_) {}

  Parsed<ChatRequest> read() {
    read_generation(fields_, chat_);
    read_messages();
    read_tools();
    read_tool_choice();
    chat_.parallel_tool_calls = fields_.boolean_or("parallel_tool_calls", true);
    read_response_format();
    read_template_arguments();
    read_logprobs();
    refuse_what_is_missing();
    check_together();
    if (error_) return *error_;
    return std::move(chat_);
  }

 private:
  void read_messages() {
    const Json* messages = fields_.array("messages");
    if (!messages) return fields_.missing("messages");
    if (messages->empty()) {
      return fields_.fail("messages", "empty_array", "'messages' is empty");
    }
    for (size_t i = 0; i < messages->size() && !error_; ++i) {
      const Json& message = (*messages)[i];
      const std::string path = at("messages", i);
      if (!message.is_object()) return fields_.wrong_type(path, "an object", message);
      read_message(Fields(message, path, error_));
    }
  }

  void read_message(const Fields& fields) {
    Message message;
    const std::optional<std::string> role = fields.string("role", 32);
    if (!role) return fields.missing("role");
    static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant",
                                                  "tool"};
    if (std::find(std::begin(kRoles), std::end(kRoles), *role) == std::end(kRoles)) {
      return fields.fail(
          "role", "invalid_value",
          "'" + fields.name("role") + "' must be system, developer, user, assistant or tool");
    }
    message.role = *role;
    read_content(fields, message);
    message.name = fields.string("name", 256).value_or("");
    if (message.role == "assistant") {
      message.reasoning = fields.string("reasoning_content", kAnyLength).value_or("");
      read_calls(fields, message);
    } else if (message.role == "tool") {
      message.tool_call_id = fields.string("tool_call_id", 256).value_or("");
    }
    const bool has_content = fields.find("content") || !message.tool_calls.empty();
    if (!has_content && message.role != "assistant") fields.missing("content");
    chat_.messages.push_back(std::move(message));
  }

  void read_content(const Fields& fields, Message& message) {
    const Json* content = fields.find("content");
    if (!content) return;
    if (content->is_string()) {
      message.parts.push_back(content->get<std::string>());
      return;
    }
    if (!content->is_array()) return fields.wrong_type("content", "a string or an array", *content);
    message.is_array = true;
    for (size_t i = 0; i < content->size() && !error_; ++i) {
      const std::string path = at("content", i);
      const Json& part = (*content)[i];
      if (!part.is_object()) return fields.wrong_type(path, "an object", part);
      read_part(Fields(part, fields.name(path), error_), message);
    }
  }

  void read_part(const Fields& part, Message& message) {
    const std::string type = part.string("type", 64).value_or("");
    if (type == "text" || type == "refusal") {
      const std::optional<std::string> text = part.string(type, kAnyLength);
      if (!text) return part.missing(type);
      message.parts.push_back(*text);
    } else if (type == "image_url" || type == "input_audio" || type == "input_video" ||
               type == "file") {
      part.fail("type", "unsupported_content",
                "this server reads text only; '" + part.name("") + "' is " + type);
    } else if (type.empty()) {
      part.missing("type");
    } else {
      part.fail("type", "invalid_value", "'" + part.name("type") + "' must be text");
    }
  }

  void read_calls(const Fields& fields, Message& message) {
    const Json* calls = fields.array("tool_calls");
    for (size_t i = 0; calls && i < calls->size() && !error_; ++i) {
      const std::string path = at("tool_calls", i);
      const Json& call = (*calls)[i];
      if (!call.is_object()) return fields.wrong_type(path, "an object", call);
      const Fields outer(call, fields.name(path), error_);
      const Json* function = outer.object("function");
      if (!function) return outer.missing("function");
      const Fields inner(*function, outer.name("function"), error_);
      ToolCall read;
      read.id = outer.string("id", 256).value_or("");
      read.name = inner.string("name", 256).value_or("");
      read.arguments = inner.string("arguments", kAnyLength).value_or("");
      if (read.name.empty()) return inner.missing("name");
      message.tool_calls.push_back(std::move(read));
    }
  }

  void read_tools() {
    const Json* tools = fields_.array("tools");
    if (!tools) return;
    if (tools->size() > kMostTools) {
      return fields_.fail("tools", "array_above_max_length",
                          fmt::format("'tools' has {}, more than {}", tools->size(), kMostTools));
    }
    for (size_t i = 0; i < tools->size() && !error_; ++i) {
      const std::string path = at("tools", i);
      const Json& tool = (*tools)[i];
      if (!tool.is_object()) return fields_.wrong_type(path, "an object", tool);
      read_tool(Fields(tool, path, error_));
    }
  }

  void read_tool(const Fields& fields) {
    const std::string type = fields.string("type", 64).value_or("");
    if (type != "function") {
      return fields.fail("type", "invalid_value", "'" + fields.name("type") + "' must be function");
    }
    const Json* function = fields.object("function");
    if (!function) return fields.missing("function");
    const Fields inner(*function, fields.name("function"), error_);
    Tool tool;
    tool.name = inner.string("name", kAnyLength).value_or("");
    if (!is_tool_name(tool.name)) {
      return inner.fail(
          "name", "invalid_value",
          "'" + inner.name("name") + "' must have 1 to 64 letters, digits, '_', '-' or '.'");
    }
    for (const Tool& other : chat_.tools) {
      if (other.name == tool.name) {
        return inner.fail("name", "invalid_value", "two tools have the name " + tool.name);
      }
    }
    tool.description = inner.string("description", kAnyLength).value_or("");
    tool.parameters = R"({"type":"object","properties":{}})";
    if (const Json* parameters = inner.object("parameters"); parameters && !parameters->empty()) {
      if (const auto problem = schema_problem(*parameters)) {
        return inner.fail("parameters", "invalid_schema",
                          "'" + inner.name("parameters") + "': " + *problem);
      }
      tool.parameters = dump(*parameters);
    }
    chat_.tools.push_back(std::move(tool));
  }

  void read_tool_choice() {
    const Json* choice = fields_.find("tool_choice");
    if (!choice) return;
    if (choice->is_string()) {
      set_tool_choice("tool_choice", choice->get<std::string>());
    } else if (choice->is_object()) {
      read_tool_choice_object(*choice);
    } else {
      fields_.wrong_type("tool_choice", "a string or an object", *choice);
    }
    if (chat_.tool_choice == ToolChoice::required && chat_.tools.empty()) {
      fields_.fail("tool_choice", "invalid_value",
                   "'tool_choice' asks for a tool and there is none");
    }
  }

  void set_tool_choice(std::string_view key, const std::string& mode) {
    if (mode == "auto") {
      chat_.tool_choice = ToolChoice::automatic;
    } else if (mode == "none") {
      chat_.tool_choice = ToolChoice::none;
    } else if (mode == "required") {
      chat_.tool_choice = ToolChoice::required;
    } else {
      fields_.fail(key, "invalid_value",
                   fmt::format("'{}' must be auto, none, required or an object", key));
    }
  }

  // {"type": "function", "function": {"name"}}, or allowed_tools with a mode and several.
  void read_tool_choice_object(const Json& choice) {
    const Fields fields(choice, "tool_choice", error_);
    const std::string type = fields.string("type", 64).value_or("");
    std::vector<std::string> names;
    const auto add_name = [&](const Fields& holder) {
      const Json* function = holder.object("function");
      if (!function) return holder.missing("function");
      const Fields inner(*function, holder.name("function"), error_);
      const std::optional<std::string> name = inner.string("name", 256);
      if (!name) return inner.missing("name");
      names.push_back(*name);
    };
    if (type == "function") {
      chat_.tool_choice = ToolChoice::required;
      add_name(fields);
    } else if (type == "allowed_tools") {
      const Json* allowed = fields.object("allowed_tools");
      if (!allowed) return fields.missing("allowed_tools");
      const Fields inner(*allowed, "tool_choice.allowed_tools", error_);
      set_tool_choice("tool_choice.allowed_tools.mode", inner.string("mode", 32).value_or("auto"));
      const Json* tools = inner.array("tools");
      if (!tools) return inner.missing("tools");
      for (size_t i = 0; i < tools->size() && !error_; ++i) {
        const std::string path = at("tools", i);
        if (!(*tools)[i].is_object()) return inner.wrong_type(path, "an object", (*tools)[i]);
        add_name(Fields((*tools)[i], inner.name(path), error_));
      }
    } else {
      return fields.fail("type", "invalid_value",
                         "'tool_choice.type' must be function or allowed_tools");
    }
    keep_tools(names);
  }

  void keep_tools(const std::vector<std::string>& names) {
    if (error_) return;
    std::vector<Tool> kept;
    for (const std::string& name : names) {
      const auto found = std::find_if(chat_.tools.begin(), chat_.tools.end(),
                                      [&](const Tool& tool) { return tool.name == name; });
      if (found == chat_.tools.end()) {
        return fields_.fail("tool_choice", "invalid_value",
                            "'tool_choice' names a tool that 'tools' does not have");
      }
      kept.push_back(*found);
    }
    chat_.tools = std::move(kept);
  }

  void read_response_format() {
    if (const Json* schema = fields_.object("json_schema")) set_schema("json_schema", *schema);
    const Json* format = fields_.object("response_format");
    if (!format) return;
    const Fields fields(*format, "response_format", error_);
    const std::string type = fields.string("type", 64).value_or("");
    if (type == "json_object") {
      const Json* schema = fields.object("schema");
      set_schema("response_format.schema", schema ? *schema : Json{{"type", "object"}});
    } else if (type == "json_schema") {
      const Json* wrapper = fields.object("json_schema");
      if (!wrapper) return fields.missing("json_schema");
      const Fields inner(*wrapper, "response_format.json_schema", error_);
      const Json* schema = inner.object("schema");
      if (!schema) return inner.missing("schema");
      set_schema("response_format.json_schema.schema", *schema);
    } else if (type != "text") {
      fields.fail("type", "invalid_value",
                  "'response_format.type' must be text, json_object or json_schema");
    }
  }

  void set_schema(std::string_view key, const Json& schema) {
    if (const auto problem = schema_problem(schema)) {
      return fields_.fail(key, "invalid_schema", fmt::format("'{}': {}", key, *problem));
    }
    chat_.json_schema = dump(schema.empty() ? Json{{"type", "object"}} : schema);
  }

  void read_template_arguments() {
    const auto add = [&](std::string name, const Json& value) {
      chat_.template_arguments.emplace_back(std::move(name), dump(value));
    };
    if (const Json* arguments = fields_.object("chat_template_kwargs")) {
      for (const auto& [name, value] : arguments->items()) {
        if (name != "enable_thinking") {
          add(name, value);
        } else if (value.is_boolean()) {
          chat_.enable_thinking = value.get<bool>();
        } else {
          fields_.wrong_type("chat_template_kwargs.enable_thinking", "true or false", value);
        }
      }
    }
    if (const auto thinks = fields_.boolean("enable_thinking")) chat_.enable_thinking = thinks;
    if (const auto effort = fields_.string("reasoning_effort", 32)) {
      if (*effort == "none") {
        chat_.enable_thinking = false;
      } else {
        add("reasoning_effort", *effort);
      }
    }
  }

  void read_logprobs() {
    const bool wants = fields_.boolean_or("logprobs", false);
    const std::optional<int64_t> top = fields_.integer("top_logprobs", 0, kMostLogprobs);
    if (wants) chat_.n_logprobs = static_cast<int32_t>(top.value_or(0));
    if (top && *top > 0 && !wants) {
      fields_.fail("top_logprobs", "invalid_value", "'top_logprobs' needs 'logprobs': true");
    }
  }

  void refuse_what_is_missing() {
    for (const char* key : {"functions", "function_call"}) {
      if (fields_.find(key)) {
        fields_.fail(key, "unsupported_parameter",
                     fmt::format("'{}' is out of date; use 'tools' and 'tool_choice'", key));
      }
    }
    const Json* modalities = fields_.array("modalities");
    for (size_t i = 0; modalities && i < modalities->size(); ++i) {
      if ((*modalities)[i] != "text") {
        fields_.fail("modalities", "unsupported_parameter", "this server answers in text only");
      }
    }
  }

  void check_together() {
    const bool has_tools = !chat_.tools.empty() && chat_.tool_choice != ToolChoice::none;
    if (!chat_.grammar.empty() && !chat_.json_schema.empty()) {
      fields_.fail("grammar", "invalid_value", "give 'grammar' or a JSON schema, not both");
    }
    if (!chat_.grammar.empty() && has_tools) {
      fields_.fail("grammar", "invalid_value",
                   "'grammar' cannot go with 'tools'; set 'tool_choice' to none");
    }
    if (!chat_.json_schema.empty() && has_tools) {
      fields_.fail("response_format", "unsupported_parameter",
                   "a JSON 'response_format' cannot go with 'tools'; set 'tool_choice' to none");
    }
    if (!chat_.conversation.empty() && chat_.n > 1) {
      fields_.fail("n", "invalid_value", "'conversation' holds one reply; 'n' must be 1");
    }
  }

  std::optional<ApiError> error_;
  Fields fields_;
  ChatRequest chat_;
};

}  // namespace

Parsed<ChatRequest> parse_chat_request(std::string_view body) {
  Parsed<Json> json = parse_body(body);
  if (auto* error = std::get_if<ApiError>(&json)) return *error;
  return ChatReader(std::get<Json>(json)).read();
}

}  // namespace weir::openai

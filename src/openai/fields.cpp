#include "openai/fields.h"

#include <fmt/format.h>

#include <cmath>

#include "base/untrusted_json.h"

namespace weir::openai {

Json error_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string_view type_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

std::string Fields::name(std::string_view key) const {
  if (path_.empty() || key.empty()) return path_ + std::string(key);
  return path_ + "." + std::string(key);
}

const Json* Fields::find(std::string_view key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::fail(std::string_view key, std::string_view code, std::string message) const {
  if (error_) return;
  error_ = ApiError{};
  error_->code = code;
  error_->message = std::move(message);
  error_->param = name(key);
}

void Fields::wrong_type(std::string_view key, std::string_view expected, const Json& got) const {
  fail(key, "invalid_type",
       fmt::format("'{}' must be {}, and is {}", name(key), expected, type_name(got)));
}

void Fields::missing(std::string_view key) const {
  fail(key, "missing_required_parameter", fmt::format("'{}' is missing", name(key)));
}

std::optional<int64_t> Fields::integer(std::string_view key, int64_t least, int64_t most) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  const std::optional<int64_t> number = json_integer(*value);
  if (!number) {
    wrong_type(key, "an integer", *value);
    return std::nullopt;
  }
  if (*number < least || *number > most) {
    fail(key, "invalid_value",
         fmt::format("'{}' must be from {} to {}, and is {}", name(key), least, most, *number));
    return std::nullopt;
  }
  return number;
}

std::optional<double> Fields::number(std::string_view key, double least, double most) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number()) {
    wrong_type(key, "a number", *value);
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (!(number >= least && number <= most)) {
    fail(key, "invalid_value",
         fmt::format("'{}' must be from {} to {}, and is {}", name(key), least, most, number));
    return std::nullopt;
  }
  return number;
}

std::optional<bool> Fields::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  wrong_type(key, "true or false", *value);
  return std::nullopt;
}

std::optional<std::string> Fields::string(std::string_view key, size_t most_bytes) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) {
    wrong_type(key, "a string", *value);
    return std::nullopt;
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > most_bytes) {
    fail(key, "string_above_max_length",
         fmt::format("'{}' has {} bytes, more than {}", name(key), text.size(), most_bytes));
    return std::nullopt;
  }
  return text;
}

const Json* Fields::object(std::string_view key) const {
  const Json* value = find(key);
  if (!value || value->is_object()) return value;
  wrong_type(key, "an object", *value);
  return nullptr;
}

const Json* Fields::array(std::string_view key) const {
  const Json* value = find(key);
  if (!value || value->is_array()) return value;
  wrong_type(key, "an array", *value);
  return nullptr;
}

}  // namespace weir::openai

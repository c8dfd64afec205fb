#include "geometry/hf_json.h"

#include "base/quote.h"
#include "base/untrusted_json.h"

namespace weir {
namespace {

using Json = nlohmann::json;

Status corrupt(std::string message) { return Status(Code::corrupt, std::move(message)); }

}  // namespace

Result<Json> parse_untrusted_json(std::string_view text) {
  Result<Json> json = parse_untrusted(text);
  if (json && !json->is_object()) {
    return corrupt("not a config.json: the JSON value is not an object");
  }
  return json;
}

void JsonFields::wrong_type(std::string_view key, const char* expected) const {
  if (status_.ok()) {
    status_ =
        corrupt("the config's " + quote(key) + " is " +
                printable(object_.at(key).dump(-1, ' ', true, Json::error_handler_t::replace), 60) +
                " instead of " + expected);
  }
}

const Json* JsonFields::find(std::string_view key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> JsonFields::integer(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  const std::optional<int64_t> number = json_integer(*value);
  if (!number) wrong_type(key, "an integer");
  return number;
}

std::optional<bool> JsonFields::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  wrong_type(key, "true or false");
  return std::nullopt;
}

std::optional<std::string> JsonFields::string(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  wrong_type(key, "a string");
  return std::nullopt;
}

std::optional<std::vector<int64_t>> JsonFields::integers(std::string_view key,
                                                         size_t max_count) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  std::vector<int64_t> numbers;
  const bool right = value->is_array() && value->size() <= max_count;
  for (size_t i = 0; right && i < value->size(); ++i) {
    const Json& element = (*value)[i];
    const std::optional<int64_t> number =
        element.is_boolean() ? std::optional<int64_t>(element.get<bool>()) : json_integer(element);
    if (number) numbers.push_back(*number);
  }
  if (right && numbers.size() == value->size()) return numbers;
  wrong_type(key, "an array of integers");
  return std::nullopt;
}

std::optional<std::vector<std::string>> JsonFields::strings(std::string_view key,
                                                            size_t max_count) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  std::vector<std::string> texts;
  const bool right = value->is_array() && value->size() <= max_count;
  for (size_t i = 0; right && i < value->size(); ++i) {
    if ((*value)[i].is_string()) texts.push_back((*value)[i].get<std::string>());
  }
  if (right && texts.size() == value->size()) return texts;
  wrong_type(key, "an array of strings");
  return std::nullopt;
}

}  // namespace weir

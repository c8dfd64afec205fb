#include "geometry/hf_json.h"

#include <cmath>

#include "base/bytes.h"
#include "base/quote.h"

namespace weir {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = 16 * kMiB;
constexpr int kMaxDepth = 64;

Status corrupt(std::string message) { return Status(Code::corrupt, std::move(message)); }

// Position of the bracket that opens level kMaxDepth + 1, or npos.
size_t too_deep_at(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return i;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return std::string_view::npos;
}

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t v = value.get<uint64_t>();
    return v > INT64_MAX ? INT64_MAX : static_cast<int64_t>(v);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double v = value.get<double>();
    if (std::abs(v) < 0x1p53 && v == std::floor(v)) return static_cast<int64_t>(v);
  }
  return std::nullopt;
}

}  // namespace

Result<Json> parse_untrusted_json(std::string_view text) {
  if (text.size() > kMaxBytes) {
    return corrupt("not a config.json: it has " + std::to_string(text.size()) + " bytes");
  }
  if (const size_t at = too_deep_at(text); at != std::string_view::npos) {
    return corrupt("the JSON is nested deeper than " + std::to_string(kMaxDepth) +
                   " levels at byte " + std::to_string(at));
  }
  try {
    Json json = Json::parse(text);
    if (!json.is_object()) return corrupt("not a config.json: the JSON value is not an object");
    return json;
  } catch (const Json::parse_error& e) {
    return corrupt("not valid JSON at byte " + std::to_string(e.byte));
  } catch (const Json::exception&) {
    return corrupt("not valid JSON: a number is out of range");
  }
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
  const std::optional<int64_t> number = as_integer(*value);
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
        element.is_boolean() ? std::optional<int64_t>(element.get<bool>()) : as_integer(element);
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

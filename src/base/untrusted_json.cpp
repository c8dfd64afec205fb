#include "base/untrusted_json.h"

#include <cmath>
#include <vector>

namespace weir {
namespace {

Status corrupt(std::string message) { return Status(Code::corrupt, std::move(message)); }

// Refuses by the brackets and commas outside of strings alone. Text that is not JSON may pass.
Status check_shape(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return corrupt("the JSON has " + std::to_string(text.size()) + " bytes, more than " +
                   std::to_string(limits.bytes));
  }
  struct Bracket {
    bool is_object;
    size_t members;
  };
  std::vector<Bracket> open;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (static_cast<int>(open.size()) == limits.depth) {
        return corrupt("the JSON is nested deeper than " + std::to_string(limits.depth) +
                       " levels at byte " + std::to_string(i));
      }
      open.push_back({c == '{', 1});
    } else if ((c == '}' || c == ']') && !open.empty()) {
      open.pop_back();
    } else if (c == ',' && !open.empty() && open.back().is_object &&
               ++open.back().members > limits.members) {
      return corrupt("an object of the JSON has more than " + std::to_string(limits.members) +
                     " members at byte " + std::to_string(i));
    }
  }
  return {};
}

template <typename Json>
Result<Json> parse(std::string_view text, const JsonLimits& limits) {
  if (Status s = check_shape(text, limits); !s.ok()) return s;
  try {
    return Json::parse(text);
  } catch (const typename Json::parse_error& e) {
    return corrupt("not valid JSON at byte " + std::to_string(e.byte));
  } catch (const typename Json::exception&) {
    return corrupt("not valid JSON: a number is out of range");
  }
}

template <typename Json>
std::optional<int64_t> integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t v = value.template get<uint64_t>();
    return v > INT64_MAX ? INT64_MAX : static_cast<int64_t>(v);
  }
  if (value.is_number_integer()) return value.template get<int64_t>();
  if (value.is_number_float()) {
    const double v = value.template get<double>();
    if (std::abs(v) < 0x1p53 && v == std::floor(v)) return static_cast<int64_t>(v);
  }
  return std::nullopt;
}

}  // namespace

Result<nlohmann::json> parse_untrusted(std::string_view text, const JsonLimits& limits) {
  return parse<nlohmann::json>(text, limits);
}

Result<nlohmann::ordered_json> parse_untrusted_ordered(std::string_view text,
                                                       const JsonLimits& limits) {
  return parse<nlohmann::ordered_json>(text, limits);
}

std::optional<int64_t> json_integer(const nlohmann::json& value) { return integer(value); }
std::optional<int64_t> json_integer(const nlohmann::ordered_json& value) { return integer(value); }

}  // namespace weir

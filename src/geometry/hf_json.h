#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace weir {

// Parses an untrusted document: bounded size and nesting, no exception. Errors (corrupt) say where.
Result<nlohmann::json> parse_untrusted_json(std::string_view text);

// Typed reads of one JSON object. A key that is absent or null gives nothing; a value of another
// type gives nothing and is remembered as the first error.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& object, Status& status) : object_(object), status_(status) {}

  bool has(std::string_view key) const { return object_.contains(key); }
  bool is_null(std::string_view key) const { return has(key) && object_.at(key).is_null(); }
  // Null if absent or null.
  const nlohmann::json* find(std::string_view key) const;

  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  // Integers or booleans; at most `max_count`.
  std::optional<std::vector<int64_t>> integers(std::string_view key, size_t max_count) const;
  std::optional<std::vector<std::string>> strings(std::string_view key, size_t max_count) const;

 private:
  void wrong_type(std::string_view key, const char* expected) const;
  const nlohmann::json& object_;
  Status& status_;
};

}  // namespace weir

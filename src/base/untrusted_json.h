#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace weir {

// What a document from outside may cost before anyone has looked at it. The parser recurses by
// depth, and an object that keeps its keys in order compares each key with all before it.
struct JsonLimits {
  size_t bytes = 16 * kMiB;
  int depth = 64;
  size_t members = 1 << 20;  // of one object
};

// Parses a whole document, keys sorted or in their order. No exception. Errors (corrupt): one line
// that says what is wrong and at which byte.
Result<nlohmann::json> parse_untrusted(std::string_view text, const JsonLimits& limits = {});
Result<nlohmann::ordered_json> parse_untrusted_ordered(std::string_view text,
                                                       const JsonLimits& limits = {});

// An integer that fits, also one written 5.0 or 5e3; nothing for anything else. Unsigned ones over
// the range become INT64_MAX.
std::optional<int64_t> json_integer(const nlohmann::json& value);
std::optional<int64_t> json_integer(const nlohmann::ordered_json& value);

}  // namespace weir

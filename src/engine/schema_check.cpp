#include "engine/schema_check.h"

#include <algorithm>
#include <exception>

#include "json-schema-to-grammar.h"
#include "json.h"

namespace weir {

Status check_schema(const std::string& schema) {
  try {
    json_schema_to_grammar(common_json::parse(schema));
    return {};
  } catch (const std::exception& e) {
    std::string what = e.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    return Status(Code::invalid_input, "the schema cannot be followed: " + what);
  }
}

}  // namespace weir

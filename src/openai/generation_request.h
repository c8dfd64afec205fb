// The fields that chat and plain completions share. For request.h's sources only.
#pragma once

#include "openai/fields.h"
#include "openai/request.h"

namespace weir::openai {

// The body as an object, or why not.
Parsed<Json> parse_body(std::string_view body);

void read_generation(const Fields& fields, Generation& into);

}  // namespace weir::openai

#pragma once

#include <optional>
#include <string>

#include "openai/api_error.h"

namespace weir::openai {

// What llama-common's conversion of a JSON schema to a grammar would not survive, or would take
// minutes over: references in circles, lists of types that multiply level by level, repetitions
// without end, names as long as a stack is deep. Nothing if the schema may be handed over; else one
// line that says what is wrong.
std::optional<std::string> schema_problem(const Json& schema);

}  // namespace weir::openai

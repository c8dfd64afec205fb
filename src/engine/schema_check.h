#pragma once

#include <string>

#include "base/status.h"

namespace weir {

// Whether llama-common can turn this JSON schema into a grammar. Errors: invalid_input with its
// reason, in one line.
Status check_schema(const std::string& schema);

}  // namespace weir

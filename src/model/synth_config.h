#pragma once

#include <string_view>

#include "base/status.h"
#include "geometry/builtin.h"

namespace weir {

// What a synthetic model needs to know, from a config.json. Errors: those of
// geometry_from_hf_config, and corrupt for a missing width, naming the key.
Result<ModelFacts> facts_from_hf_config(std::string_view json);

}  // namespace weir

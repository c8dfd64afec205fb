#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "geometry/builtin.h"

namespace weir {

// The facts of a model from the `geometry` object of a catalog entry (docs/catalog.md). What it
// returns is safe to use: layers, kinds and windows agree with each other and stay in the bounds of
// geometry_draft.h. Errors: corrupt, naming the field.
Result<ModelFacts> facts_from_json(const nlohmann::json& geometry);

}  // namespace weir

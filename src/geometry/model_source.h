#pragma once

#include <string>

#include "base/status.h"
#include "geometry/builtin.h"
#include "geometry/kv_geometry.h"

namespace weir {

// What a MODEL argument of the command line names, and the geometry read from it.
struct ModelSource {
  enum class Kind : uint8_t { builtin, gguf, hf_config };
  Kind kind = Kind::builtin;
  std::string label;  // one line for people and reports: an id, or the model's name
  KvGeometry geometry;
  const ModelFacts* facts = nullptr;  // of a built-in model
};

// `argument` is, in this order: an id of the built-in list; a GGUF file (by its first bytes); a
// config.json (by content); a directory with one. Errors name what was found and what to give.
Result<ModelSource> open_model_source(const std::string& argument);

}  // namespace weir

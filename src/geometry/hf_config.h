#pragma once

#include <string_view>

#include "base/status.h"
#include "geometry/kv_geometry.h"

namespace weir {

// The KV geometry that a config.json of the `transformers` library describes, read as that library
// reads it: text models, and the text part of multimodal ones. A model_type without a rule of its
// own is read by what the file says; where it names a window but not which layers use it, all
// layers are counted as global and a note says so.
// Errors: corrupt (not JSON, a wrong type, a contradiction) or unsupported, naming the key.
Result<KvGeometry> geometry_from_hf_config(std::string_view json);

}  // namespace weir

#pragma once

#include "base/status.h"
#include "geometry/gguf_reader.h"
#include "geometry/kv_geometry.h"

namespace weir {

// The KV geometry that a GGUF file describes. Draft (MTP) layers are left out. An architecture
// without a rule of its own is read by what the file says; where the file does not say which
// layers are local, all are counted as global and a note says so.
// Errors: corrupt or unsupported, naming the key.
Result<KvGeometry> geometry_from_gguf(const GgufFile& file);

}  // namespace weir

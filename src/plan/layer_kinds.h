#pragma once

#include <string>
#include <vector>

#include "geometry/kv_geometry.h"

namespace weir {

// Layers that own KV of the same kind and shape.
struct LayerKindSummary {
  Retention retention;
  int n_layers = 0;
  int n_kv_heads = 0, k_dim = 0, v_dim = 0;
};

struct LayerSummary {
  std::vector<LayerKindSummary> kinds;  // global first, then by first appearance
  int n_reusing = 0;                    // own no KV: they read an earlier layer's
  int n_without_kv = 0;                 // have no attention
};

LayerSummary summarize_layers(const KvGeometry& geometry);

const char* kind_name(LayerKind kind);  // "global", "local", "chunked"

}  // namespace weir

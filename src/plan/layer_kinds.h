#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "geometry/kv_layout.h"

namespace weir {

// Layers that own KV of the same kind and shape.
struct LayerKindSummary {
  Retention retention;
  int n_layers = 0;
  int n_kv_heads = 0, k_dim = 0, v_dim = 0;
  KvLayer example;  // one of the layers

  // Of one token in one layer.
  Bytes row_bytes(const KvFormat& format) const {
    return n_kv_heads *
           Bytes{kv_row_bytes(format.k_of(retention.kind), k_stored_elements(example, format)) +
                 kv_row_bytes(format.v_of(retention.kind), v_dim)};
  }
};

struct LayerSummary {
  std::vector<LayerKindSummary> kinds;  // global first, then by first appearance
  int n_reusing = 0;                    // own no KV: they read an earlier layer's
  int n_without_kv = 0;                 // have no attention
};

LayerSummary summarize_layers(const KvGeometry& geometry);

const char* kind_name(LayerKind kind);  // "global", "local", "chunked"

}  // namespace weir

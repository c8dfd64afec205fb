#include "plan/layer_kinds.h"

#include <algorithm>

namespace weir {

LayerSummary summarize_layers(const KvGeometry& geometry) {
  LayerSummary summary;
  for (const KvLayer& layer : geometry.layers) {
    if (!layer.owns_kv()) {
      ++summary.n_reusing;
    } else if (layer.n_kv_heads == 0) {
      ++summary.n_without_kv;
    } else {
      const auto same = [&](const LayerKindSummary& k) {
        return k.retention == layer.retention && k.n_kv_heads == layer.n_kv_heads &&
               k.k_dim == layer.k_dim && k.v_dim == layer.v_dim &&
               k.example.storage == layer.storage && k.example.k_rotating == layer.k_rotating;
      };
      auto kind = std::find_if(summary.kinds.begin(), summary.kinds.end(), same);
      if (kind == summary.kinds.end()) {
        kind = summary.kinds.insert(
            kind, {layer.retention, 0, layer.n_kv_heads, layer.k_dim, layer.v_dim, layer});
      }
      ++kind->n_layers;
    }
  }
  std::stable_partition(summary.kinds.begin(), summary.kinds.end(), [](const LayerKindSummary& k) {
    return k.retention.kind == LayerKind::global;
  });
  return summary;
}

const char* kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::global:
      return "global";
    case LayerKind::sliding:
      return "local";
    case LayerKind::chunked:
      return "chunked";
  }
  return "";
}

}  // namespace weir

#include "geometry/geometry_draft.h"

#include <algorithm>

#include "base/quote.h"

namespace weir {
namespace {

constexpr int64_t kMaxHeadsOrDims = int64_t{1} << 16;

Status bad(std::string message) { return Status(Code::corrupt, std::move(message)); }

Status check_layer(const GeometryDraft::Layer& layer, size_t index) {
  const struct {
    const char* what;
    int64_t value, least;
  } facts[] = {{"attention heads", layer.n_heads, 0},
               {"KV heads", layer.n_kv_heads, 0},
               {"elements in a K row", layer.k_dim, layer.n_kv_heads > 0 ? 1 : 0},
               {"elements in a V row", layer.v_dim, layer.n_kv_heads > 0 ? 1 : 0}};
  for (const auto& fact : facts) {
    if (fact.value >= fact.least && fact.value <= kMaxHeadsOrDims) continue;
    return bad("layer " + std::to_string(index) + " has " + std::to_string(fact.value) + " " +
               fact.what + "; expected " + std::to_string(fact.least) + " to " +
               std::to_string(kMaxHeadsOrDims));
  }
  return {};
}

// Layers from `first` on read the last owning layer of their own kind.
Status share(KvGeometry& geometry, size_t first) {
  for (size_t i = first; i < geometry.layers.size(); ++i) {
    KvLayer& layer = geometry.layers[i];
    size_t source = first;
    while (source > 0 && geometry.layers[source - 1].retention != layer.retention) --source;
    if (source == 0) {
      return bad("layer " + std::to_string(i) +
                 " should read another layer's KV, but no earlier layer of its kind owns any");
    }
    const KvLayer& owner = geometry.layers[source - 1];
    layer.source = owner.index;
    layer.n_kv_heads = owner.n_kv_heads;
    layer.k_dim = owner.k_dim;
    layer.v_dim = owner.v_dim;
    layer.storage = owner.storage;
    layer.k_rotating = owner.k_rotating;
  }
  return {};
}

}  // namespace

Result<KvGeometry> finish_geometry(GeometryDraft draft) {
  const int64_t n_layers = static_cast<int64_t>(draft.layers.size());
  if (n_layers < 1 || n_layers > kMaxLayers) {
    return bad("the model has " + std::to_string(n_layers) + " layers; expected 1 to " +
               std::to_string(kMaxLayers));
  }
  if (draft.window < 0) return bad("the window is " + std::to_string(draft.window) + " tokens");
  if (draft.n_reusing < 0 || draft.n_reusing >= n_layers) {
    return bad(std::to_string(draft.n_reusing) + " of " + std::to_string(n_layers) +
               " layers are said to share their KV; at least one must own it");
  }

  KvGeometry geometry;
  geometry.name = printable(draft.name, 120);
  geometry.arch = printable(draft.arch, 120);
  geometry.max_context =
      draft.max_context < 0 || draft.max_context > kMaxTokens ? 0 : draft.max_context;
  geometry.pattern = draft.pattern;
  geometry.notes = std::move(draft.notes);
  if (draft.window >= kMaxTokens) {
    geometry.notes.push_back(
        "the window of " + std::to_string(draft.window) +
        " tokens is longer than any context: every layer is counted as global");
    draft.window = 0;
  }

  int64_t elements = 0;
  for (size_t i = 0; i < draft.layers.size(); ++i) {
    const GeometryDraft::Layer& from = draft.layers[i];
    if (Status s = check_layer(from, i); !s.ok()) return s;
    elements += from.n_kv_heads * (from.k_dim + from.v_dim);
    if (elements > kMaxElementsPerToken) {
      return bad("the KV of one token would have more than " +
                 std::to_string(kMaxElementsPerToken) + " elements, from layer " +
                 std::to_string(i) + " on");
    }
    KvLayer layer;
    layer.index = layer.source = static_cast<int>(i);
    if (from.is_local && draft.window > 0 && from.n_kv_heads > 0) {
      layer.retention = {draft.local_kind, draft.window};
    }
    layer.n_heads = static_cast<int>(from.n_heads);
    layer.n_kv_heads = static_cast<int>(from.n_kv_heads);
    layer.k_dim = static_cast<int>(from.k_dim);
    layer.v_dim = static_cast<int>(from.v_dim);
    layer.storage = from.is_projection_shared ? KvStorage::shared : KvStorage::separate;
    if (from.is_projection_shared && from.k_rotating > 0 && from.k_rotating <= from.k_dim)
      layer.k_rotating = static_cast<int>(from.k_rotating / 2 * 2);
    geometry.layers.push_back(layer);
  }
  if (elements == 0) {
    return Status(Code::unsupported, "no layer of this model has a KV cache");
  }
  if (draft.n_reusing > 0) {
    const size_t first = draft.layers.size() - static_cast<size_t>(draft.n_reusing);
    if (Status s = share(geometry, first); !s.ok()) return s;
  }
  return geometry;
}

}  // namespace weir

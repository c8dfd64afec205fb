#include "geometry/kv_layout.h"

#include <algorithm>
#include <string>

namespace weir {
namespace {

std::string pair_name(KvType k, KvType v) {
  if (k == v) return kv_type_name(k);
  return std::string("k ") + kv_type_name(k) + ", v " + kv_type_name(v);
}

Status check_row(const KvLayer& layer, const char* what, KvType type, int dim) {
  if (dim % kv_type_block(type) == 0) return {};
  return Status(Code::invalid_input,
                std::string("KV type ") + kv_type_name(type) + " cannot store the " + what +
                    " rows of " + (layer.retention.kind == LayerKind::global ? "global" : "local") +
                    " layers: " + std::to_string(dim) + " elements are not a multiple of " +
                    std::to_string(kv_type_block(type)) + "; use f16, bf16 or f32 for them");
}

// Appends `layer` to the group's block.
void add_layer(KvGroup& group, const KvLayer& layer, const KvFormat& format) {
  const int64_t B = group.block_tokens;
  GroupLayer entry{.layer = layer.index,
                   .n_kv_heads = layer.n_kv_heads,
                   .k_dim = layer.k_dim,
                   .v_dim = layer.v_dim};
  const int stored = k_stored_elements(layer, format);
  if (stored < layer.k_dim) entry.k_rotating = stored;
  entry.k_tile_bytes = B * kv_row_bytes(group.k_type, entry.k_stored());
  entry.v_tile_bytes = B * kv_row_bytes(group.v_type, layer.v_dim);
  entry.k_offset = group.block_bytes.v;
  entry.v_offset = entry.k_offset + layer.n_kv_heads * entry.k_tile_bytes;
  const Bytes layer_bytes{layer.n_kv_heads * (entry.k_tile_bytes + entry.v_tile_bytes)};
  group.block_bytes += layer_bytes;
  group.largest_layer_bytes = std::max(group.largest_layer_bytes, layer_bytes);
  group.layers.push_back(entry);
}

}  // namespace

std::string KvFormat::type_name() const {
  if (global_k == local_k && global_v == local_v) return pair_name(global_k, global_v);
  return "global " + pair_name(global_k, global_v) + "; local " + pair_name(local_k, local_v);
}

int k_stored_elements(const KvLayer& layer, const KvFormat& format) {
  const KvType type = format.k_of(layer.retention.kind);
  const bool is_shared = format.share && layer.storage == KvStorage::shared &&
                         type == format.v_of(layer.retention.kind) && layer.k_dim == layer.v_dim &&
                         layer.k_dim % 2 == 0 && layer.k_rotating > 0 &&
                         layer.k_rotating < layer.k_dim &&
                         layer.k_rotating % kv_type_block(type) == 0;
  return is_shared ? layer.k_rotating : layer.k_dim;
}

Result<KvLayout> make_layout(const KvGeometry& geometry, const KvFormat& format) {
  if (format.block_tokens != 16 && format.block_tokens != 32 && format.block_tokens != 64) {
    return Status(Code::invalid_input, "a KV block holds 16, 32 or 64 tokens, not " +
                                           std::to_string(format.block_tokens));
  }
  KvLayout layout{.format = format,
                  .groups = {},
                  .group_of = std::vector<int>(geometry.layers.size(), -1),
                  .slot_of = std::vector<int>(geometry.layers.size(), -1)};

  // Two passes, so that the global group comes first whatever the first layer is.
  for (const bool global_pass : {true, false}) {
    for (const KvLayer& layer : geometry.layers) {
      const bool is_global = layer.retention.kind == LayerKind::global;
      if (!layer.owns_kv() || is_global != global_pass) continue;
      const KvType k_type = format.k_of(layer.retention.kind);
      const KvType v_type = format.v_of(layer.retention.kind);
      if (Status s = check_row(layer, "K", k_type, layer.k_dim); !s.ok()) return s;
      if (Status s = check_row(layer, "V", v_type, layer.v_dim); !s.ok()) return s;

      auto group = std::find_if(layout.groups.begin(), layout.groups.end(),
                                [&](const KvGroup& g) { return g.retention == layer.retention; });
      if (group == layout.groups.end()) {
        KvGroup added;
        added.id = static_cast<GroupId>(layout.groups.size());
        added.retention = layer.retention;
        added.k_type = k_type;
        added.v_type = v_type;
        added.k_rotated = is_rotated(k_type, format.rotation);
        added.v_rotated = is_rotated(v_type, format.rotation);
        added.block_tokens = format.block_tokens;
        group = layout.groups.insert(layout.groups.end(), std::move(added));
      }
      layout.group_of[layer.index] = static_cast<int>(group - layout.groups.begin());
      layout.slot_of[layer.index] = static_cast<int>(group->layers.size());
      add_layer(*group, layer, format);
    }
  }
  for (const KvLayer& layer : geometry.layers) {
    layout.group_of[layer.index] = layout.group_of[layer.source];
    layout.slot_of[layer.index] = layout.slot_of[layer.source];
  }
  return layout;
}

}  // namespace weir

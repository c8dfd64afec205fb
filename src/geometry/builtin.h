#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "geometry/kv_geometry.h"

namespace weir {

// What the layers of one kind (global or local) have in common.
struct LayerKindFacts {
  int n_head = 0, n_head_kv = 0;
  int head_dim_k = 0, head_dim_v = 0;
  std::optional<int> rope_dims;      // elements that rotate; 0: none; nothing: not sourced
  std::optional<double> rope_theta;  // nothing where nothing rotates or not sourced
};

// The facts of a published model, KV geometry and more: the `geometry` of its catalog entry
// (docs/catalog.md says what each field means). What has no value there has none here.
struct ModelFacts {
  std::string id, name, family, gguf_arch, hf_arch;
  bool verified = false;  // the geometry was read in the vendor's config or code
  std::string source, notes;

  int n_layers = 0;      // decoder layers
  int n_mtp_layers = 0;  // draft layers that a GGUF's block_count counts on top
  std::vector<int> global_layers;
  std::optional<int64_t> window;
  std::string attention_kind;  // standard, chunked or full
  std::vector<int> kv_source;  // per layer: the layer whose KV it reads
  std::optional<LayerKindFacts> global, local;
  bool v_from_k_global = false;

  int64_t n_embd = 0;
  std::optional<int64_t> n_ff, n_vocab;
  std::optional<int64_t> n_ff_reusing;  // of layers that read another's KV, if not n_ff
  int64_t n_embd_per_layer = 0;         // width of per-layer embeddings; 0: none
  std::string rope_type_gguf;           // neox or norm
  std::string rope_scaling, rope_scaling_scope;
  double attn_scale = 0, attn_softcap = 0, final_softcap = 0, logit_scale = 1;
  std::string embd_scale;  // "1", "sqrt(n_embd)", ...
  std::string sinks, q_norm, k_norm, v_norm, attn_gate, norm_kind, norm_placement, act;
  bool norm_plus_one_in_hf = false;

  int n_expert = 0, n_expert_used = 0, n_expert_shared = 0;
  int64_t n_ff_exp = 0;
  int n_dense_lead = 0, moe_every = 0;
  std::optional<bool> tied_embeddings;
  int64_t max_context = 0;
  std::string turn_open, turn_close;

  bool is_global(int layer) const;
};

// The files of catalog/ as one JSON array, in the natural order of their names.
std::string_view builtin_catalog();

// The models of the catalog, in the same order. Parsed once; any thread.
const std::vector<ModelFacts>& builtin_models();

// Errors: not_found, naming ids that look like `id`.
Result<const ModelFacts*> find_builtin(std::string_view id);
Result<KvGeometry> builtin_geometry(std::string_view id);
KvGeometry geometry_of(const ModelFacts& facts);

}  // namespace weir

// Pieces of a decoder layer that many families have in common: their tensors, read and applied.
#pragma once

#include <cstdint>
#include <string>

#include "geometry/kv_geometry.h"
#include "model/graph.h"

namespace weir {

class WeightLoader;

inline std::string block_prefix(int layer) { return "blk." + std::to_string(layer) + "."; }

// attn_q, attn_k, attn_v, or the three fused as attn_qkv (rows in this order); with biases where
// the file has them.
struct QkvWeights {
  int n_heads = 0, n_kv_heads = 0, k_dim = 0, v_dim = 0;
  ggml_tensor *q = nullptr, *k = nullptr, *v = nullptr, *qkv = nullptr;
  ggml_tensor *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *qkv_bias = nullptr;

  static QkvWeights read(WeightLoader& w, const KvLayer& layer, int64_t n_embd);
  // For families whose files do not fuse them.
  static QkvWeights read_separate(WeightLoader& w, const KvLayer& layer, int64_t n_embd);

  struct Projected {
    ggml_tensor *q, *k, *v;
  };
  Projected project(GraphBuilder& g, ggml_tensor* x) const;  // [width, n_tokens]; not if fused
  Projected project_heads(GraphBuilder& g, ggml_tensor* x) const;  // as heads
};

// ffn_gate, ffn_up, ffn_down; without ffn_gate, ffn_up holds the rows of both, gate first. With
// biases where the file has them.
struct FfnWeights {
  ggml_tensor *gate = nullptr, *up = nullptr, *down = nullptr;
  ggml_tensor *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;

  static FfnWeights read(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff);
  static FfnWeights read_fused(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff);
  ggml_tensor* apply(GraphBuilder& g, Activation activation, ggml_tensor* x) const;
};

}  // namespace weir

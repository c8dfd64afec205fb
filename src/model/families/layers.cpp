#include "model/families/layers.h"

#include "base/check.h"
#include "model/weight_loader.h"

namespace weir {

QkvWeights QkvWeights::read(WeightLoader& w, const KvLayer& layer, int64_t n_embd) {
  QkvWeights weights;
  weights.n_heads = layer.n_heads;
  weights.n_kv_heads = layer.n_kv_heads;
  weights.k_dim = layer.k_dim;
  weights.v_dim = layer.v_dim;
  const std::string b = block_prefix(layer.index);
  const int64_t q_width = int64_t{layer.n_heads} * layer.k_dim;
  const int64_t k_width = int64_t{layer.n_kv_heads} * layer.k_dim;
  const int64_t v_width = int64_t{layer.n_kv_heads} * layer.v_dim;
  if (w.has(b + "attn_qkv.weight")) {
    const int64_t width = q_width + k_width + v_width;
    weights.qkv = w.matrix(b + "attn_qkv.weight", n_embd, width);
    weights.qkv_bias = w.vector_if_present(b + "attn_qkv.bias", width);
    return weights;
  }
  weights.q = w.matrix(b + "attn_q.weight", n_embd, q_width);
  weights.k = w.matrix(b + "attn_k.weight", n_embd, k_width);
  weights.v = w.matrix(b + "attn_v.weight", n_embd, v_width);
  weights.q_bias = w.vector_if_present(b + "attn_q.bias", q_width);
  weights.k_bias = w.vector_if_present(b + "attn_k.bias", k_width);
  weights.v_bias = w.vector_if_present(b + "attn_v.bias", v_width);
  return weights;
}

QkvWeights::Projected QkvWeights::project(GraphBuilder& g, ggml_tensor* x) const {
  WEIR_CHECK(!qkv);
  return {g.linear(q, x, q_bias), g.linear(k, x, k_bias), g.linear(v, x, v_bias)};
}

QkvWeights::Projected QkvWeights::project_heads(GraphBuilder& g, ggml_tensor* x) const {
  if (!qkv) {
    const Projected flat = project(g, x);
    return {g.heads(flat.q, k_dim), g.heads(flat.k, k_dim), g.heads(flat.v, v_dim)};
  }
  ggml_tensor* all = g.linear(qkv, x, qkv_bias);
  const int64_t first_k = int64_t{n_heads} * k_dim;
  const int64_t first_v = first_k + int64_t{n_kv_heads} * k_dim;
  return {g.heads(all, k_dim, n_heads, 0), g.heads(all, k_dim, n_kv_heads, first_k),
          g.heads(all, v_dim, n_kv_heads, first_v)};
}

FfnWeights FfnWeights::read(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff) {
  const std::string b = block_prefix(layer);
  return {w.matrix(b + "ffn_gate.weight", n_embd, n_ff), w.matrix(b + "ffn_up.weight", n_embd, n_ff),
          w.matrix(b + "ffn_down.weight", n_ff, n_embd)};
}

FfnWeights FfnWeights::read_fused(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff) {
  const std::string b = block_prefix(layer);
  return {nullptr, w.matrix(b + "ffn_up.weight", n_embd, 2 * n_ff),
          w.matrix(b + "ffn_down.weight", n_ff, n_embd)};
}

}  // namespace weir

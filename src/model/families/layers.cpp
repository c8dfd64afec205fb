#include "model/families/layers.h"

#include "base/check.h"
#include "model/weight_loader.h"

namespace weir {

QkvWeights QkvWeights::read(WeightLoader& w, const KvLayer& layer, int64_t n_embd) {
  const std::string b = block_prefix(layer.index);
  if (!w.has(b + "attn_qkv.weight")) return read_separate(w, layer, n_embd);
  QkvWeights weights{layer.n_heads, layer.n_kv_heads, layer.k_dim, layer.v_dim};
  const int64_t width = int64_t{layer.n_heads + layer.n_kv_heads} * layer.k_dim +
                        int64_t{layer.n_kv_heads} * layer.v_dim;
  weights.qkv = w.matrix(b + "attn_qkv.weight", n_embd, width);
  weights.qkv_bias = w.vector_if_present(b + "attn_qkv.bias", width);
  return weights;
}

QkvWeights QkvWeights::read_separate(WeightLoader& w, const KvLayer& layer, int64_t n_embd) {
  QkvWeights weights{layer.n_heads, layer.n_kv_heads, layer.k_dim, layer.v_dim};
  const std::string b = block_prefix(layer.index);
  const int64_t q_width = int64_t{layer.n_heads} * layer.k_dim;
  const int64_t k_width = int64_t{layer.n_kv_heads} * layer.k_dim;
  const int64_t v_width = int64_t{layer.n_kv_heads} * layer.v_dim;
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
  FfnWeights weights;
  weights.gate = w.matrix(b + "ffn_gate.weight", n_embd, n_ff);
  weights.up = w.matrix(b + "ffn_up.weight", n_embd, n_ff);
  weights.down = w.matrix(b + "ffn_down.weight", n_ff, n_embd);
  weights.gate_bias = w.vector_if_present(b + "ffn_gate.bias", n_ff);
  weights.up_bias = w.vector_if_present(b + "ffn_up.bias", n_ff);
  weights.down_bias = w.vector_if_present(b + "ffn_down.bias", n_embd);
  return weights;
}

FfnWeights FfnWeights::read_fused(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff) {
  const std::string b = block_prefix(layer);
  FfnWeights weights;
  weights.up = w.matrix(b + "ffn_up.weight", n_embd, 2 * n_ff);
  weights.down = w.matrix(b + "ffn_down.weight", n_ff, n_embd);
  return weights;
}

ggml_tensor* FfnWeights::apply(GraphBuilder& g, Activation activation, ggml_tensor* x) const {
  ggml_tensor* wide =
      gate ? g.gated(activation, g.linear(gate, x, gate_bias), g.linear(up, x, up_bias))
           : g.gated(activation, g.linear(up, x, up_bias), nullptr);
  return g.linear(down, wide, down_bias);
}

}  // namespace weir

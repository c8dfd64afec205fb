#include "model/families/moe_layers.h"

#include <vector>

#include "geometry/builtin.h"
#include "ggml.h"
#include "model/synth_file.h"
#include "model/synth_keys.h"
#include "model/weight_loader.h"

namespace weir {
namespace {

ggml_tensor* limited_ffn(GraphBuilder& g, const FfnWeights& f, float limit, ggml_tensor* x) {
  ggml_tensor *gate = g.linear(f.gate, x), *up = g.linear(f.up, x);
  return g.linear(f.down, limited_swiglu(g.context(), gate, up, limit));
}

}  // namespace

ggml_tensor* FeedForward::apply(GraphBuilder& g, ggml_tensor* x) const {
  ggml_tensor* y = nullptr;
  if (dense.down) {
    y = dense_limit > 0 ? limited_ffn(g, dense, dense_limit, x)
                        : dense.apply(g, Activation::silu, x);
  }
  if (!has_experts) return y;
  const Routing routing = route(g.context(), router, g.linear(router.weight, x, router.bias));
  ggml_tensor* sum = apply_experts(g.context(), experts, routing, x, weight_side);
  return y ? g.add(sum, y) : sum;
}

FeedForward FeedForward::read_dense(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff) {
  FeedForward f;
  f.dense = FfnWeights::read(w, layer, n_embd, n_ff);
  return f;
}

FeedForward FeedForward::read_experts(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff,
                                      const Router& router) {
  const std::string b = block_prefix(layer);
  FeedForward f;
  f.has_experts = true;
  f.router = router;
  read_router_weight(w, b, n_embd, false, f.router);
  f.experts = weir::read_experts(w, b, n_embd, n_ff, router.n_expert, false);
  return f;
}

int64_t read_width(WeightLoader& w, const char* key) {
  const int64_t width = w.integer(key);
  if (w.status().ok() && (width < 1 || width > INT32_MAX))
    w.fail(Code::corrupt, "key " + w.full_key(key) + " is " + std::to_string(width));
  return w.status().ok() ? width : 0;
}

int64_t read_width(WeightLoader& w, const char* key, int64_t otherwise) {
  return w.has_key(key) ? read_width(w, key) : otherwise;
}

FfnWeights read_shared_expert(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff) {
  const std::string b = block_prefix(layer);
  return {w.matrix(b + "ffn_gate_shexp.weight", n_embd, n_ff),
          w.matrix(b + "ffn_up_shexp.weight", n_embd, n_ff),
          w.matrix(b + "ffn_down_shexp.weight", n_ff, n_embd)};
}

ggml_tensor* gate_heads(GraphBuilder& g, ggml_tensor* attended, ggml_tensor* gate, int v_dim) {
  if (gate->ne[0] == attended->ne[0]) return g.mul(attended, gate);
  ggml_context* ctx = g.context();
  const int64_t width = attended->ne[0], n_tokens = attended->ne[1];
  ggml_tensor* by_head = ggml_reshape_3d(ctx, gate, 1, width / v_dim, n_tokens);
  return ggml_reshape_2d(ctx, g.mul(g.heads(attended, v_dim), by_head), width, n_tokens);
}

// --- synthetic models ---------------------------------------------------------------------------

void synth_expert_keys(const ModelFacts& m, SynthFile& file) {
  const std::string a = m.gguf_arch + ".";
  file.key(a + "expert_count", static_cast<uint32_t>(m.n_expert));
  file.key(a + "expert_used_count", static_cast<uint32_t>(m.n_expert_used));
  file.key(a + "expert_feed_forward_length", static_cast<uint32_t>(m.n_ff_exp));
}

void synth_draft_keys(const ModelFacts& m, SynthFile& file) {
  if (m.n_mtp_layers == 0) return;
  const std::string a = m.gguf_arch + ".";
  file.key(a + "block_count", static_cast<uint32_t>(m.n_layers + m.n_mtp_layers));
  file.key(a + "nextn_predict_layers", static_cast<uint32_t>(m.n_mtp_layers));
  std::vector<uint32_t> heads, kv_heads;
  for (int i = 0; i < m.n_layers + m.n_mtp_layers; ++i) {
    heads.push_back(static_cast<uint32_t>(kind_of(m, i).n_head));
    kv_heads.push_back(static_cast<uint32_t>(kind_of(m, i).n_head_kv));
  }
  file.array(a + "attention.head_count", heads);
  file.array(a + "attention.head_count_kv", kv_heads);
}

void synth_draft_ends(const ModelFacts& m, const std::string& b, SynthFile& file) {
  file.matrix(b + "nextn.eh_proj.weight", 2 * m.n_embd, m.n_embd);
  file.norm(b + "nextn.enorm.weight", m.n_embd);
  file.norm(b + "nextn.hnorm.weight", m.n_embd);
}

void synth_sinks(const std::string& b, int n_heads, SynthFile& file) {
  file.vector(b + "attn_sinks.weight", n_heads, 2.0f, 1.0f);
}

void synth_shared_expert(const std::string& b, int64_t n_embd, int64_t n_ff, SynthFile& file,
                         float gain) {
  file.matrix(b + "ffn_gate_shexp.weight", n_embd, n_ff, gain);
  file.matrix(b + "ffn_up_shexp.weight", n_embd, n_ff, gain);
  file.matrix(b + "ffn_down_shexp.weight", n_ff, n_embd);
}

}  // namespace weir

#include <cmath>
#include <vector>

#include "geometry/builtin.h"
#include "ggml.h"
#include "model/families/moe_layers.h"
#include "model/families/transformer.h"
#include "model/rope_keys.h"
#include "model/synth_file.h"
#include "model/synth_keys.h"
#include "model/weight_loader.h"

namespace weir {
namespace {

// Laguna XS.2 and S 2.1. Local layers have more query heads than global ones and rotate whole heads
// plainly; global ones rotate half a head with YaRN. Attention passes a gate, of each head or of
// each element by the width of its matrix; experts beside a shared one.
class Laguna : public Transformer {
 public:
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w);

  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    QkvWeights qkv;
    ggml_tensor *attn_norm, *q_norm, *k_norm, *gate, *attn_output, *ffn_norm;
    FeedForward ffn;
  };
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const override;
  ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const override;
  ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const override {
    return g.linear(output_, g.rms_norm(x, output_norm_, eps_));
  }

  float eps_ = 0;
  std::vector<Layer> layers_;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* Laguna::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  ggml_tensor* a = g.rms_norm(x, layer.attn_norm, eps_);
  auto [q, k, v] = layer.qkv.project_heads(g, a);
  q = g.rope(g.rms_norm(q, layer.q_norm, eps_), layer.rope);
  k = g.rope(g.rms_norm(k, layer.k_norm, eps_), layer.rope);
  ggml_tensor* o =
      g.attend(i, {.scale = 1.0f / std::sqrt(static_cast<float>(layer.qkv.k_dim))}, q, k, v);
  return gate_heads(g, o, ggml_softplus(g.context(), g.linear(layer.gate, a)), layer.qkv.v_dim);
}

ggml_tensor* Laguna::rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  x = g.add(g.linear(layer.attn_output, attended), x);
  return g.add(layer.ffn.apply(g, g.rms_norm(x, layer.ffn_norm, eps_)), x);
}

// --- keys and tensors ---------------------------------------------------------------------------

// One row a head, or one an element.
ggml_tensor* read_gate(WeightLoader& w, const std::string& name, int64_t n_embd,
                       const KvLayer& kv) {
  const int64_t elements = int64_t{kv.n_heads} * kv.v_dim;
  return w.matrix(name, n_embd, w.row_count(name) == elements ? elements : kv.n_heads);
}

Result<std::unique_ptr<FamilyModel>> Laguna::open(WeightLoader& w) {
  auto model = std::make_unique<Laguna>();
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  const int64_t n_embd = model->n_embd_;
  model->eps_ = w.positive("attention.layer_norm_rms_epsilon");
  const Router router = read_router(w, Gating::sigmoid);
  const int64_t n_dense = w.integer("leading_dense_block_count");
  const int64_t n_ff = read_width(w, "feed_forward_length");
  const int64_t n_ff_exp = read_width(w, "expert_feed_forward_length");
  const int64_t n_ff_shared = read_width(w, "expert_shared_feed_forward_length", n_ff_exp);
  for (const KvLayer& kv : w.geometry().layers) {
    const std::string b = block_prefix(kv.index);
    Layer layer;
    layer.rope = read_rope(w, kv, {.scaled = RopeRule::On::global});
    layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd);
    layer.qkv = QkvWeights::read(w, kv, n_embd);
    layer.q_norm = w.vector(b + "attn_q_norm.weight", kv.k_dim);
    layer.k_norm = w.vector(b + "attn_k_norm.weight", kv.k_dim);
    layer.gate = read_gate(w, b + "attn_gate.weight", n_embd, kv);
    layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd);
    layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd);
    if (kv.index < n_dense) {
      layer.ffn = FeedForward::read_dense(w, kv.index, n_embd, n_ff);
    } else {
      layer.ffn = FeedForward::read_experts(w, kv.index, n_embd, n_ff_exp, router);
      layer.ffn.router.choice_bias = w.vector(b + "exp_probs_b.bias", router.n_expert);
      layer.ffn.dense = read_shared_expert(w, kv.index, n_embd, n_ff_shared);
    }
    if (!w.status().ok()) return w.status();
    model->layers_.push_back(layer);
  }
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

void synthesize_laguna(const ModelFacts& m, SynthFile& file) {
  constexpr uint32_t kSigmoid = 2;  // of expert_gating_func
  const std::string a = m.gguf_arch + ".";
  synth_common_keys(m, file);
  synth_expert_keys(m, file);
  file.key(a + "leading_dense_block_count", static_cast<uint32_t>(m.n_dense_lead));
  file.key(a + "expert_shared_feed_forward_length", static_cast<uint32_t>(m.n_ff_exp));
  file.key(a + "expert_gating_func", kSigmoid);
  file.key(a + "expert_weights_scale", 2.5f);
  file.flag(a + "expert_weights_norm", true);
  synth_ends(m, file);
  const bool by_head = m.attn_gate.ends_with("head");
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    const LayerKindFacts& kind = kind_of(m, i);
    file.norm(b + "attn_norm.weight", m.n_embd);
    synth_attention(m, kind, b, file);
    file.norm(b + "attn_q_norm.weight", kind.head_dim_k, kSynthSharpness);
    file.norm(b + "attn_k_norm.weight", kind.head_dim_k, kSynthSharpness);
    file.matrix(b + "attn_gate.weight", m.n_embd,
                by_head ? kind.n_head : int64_t{kind.n_head} * kind.head_dim_v);
    file.norm(b + "ffn_norm.weight", m.n_embd);
    if (i < m.n_dense_lead) {
      synth_ffn(m, b, file);
      continue;
    }
    synthesize_experts(
        file, b,
        {.n_embd = m.n_embd, .n_ff = m.n_ff_exp, .n_expert = m.n_expert, .choice_bias = true});
    synth_shared_expert(b, m.n_embd, m.n_ff_exp, file);
  }
}

}  // namespace

const Family kLaguna = {"laguna", Laguna::open, synthesize_laguna};

}  // namespace weir

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

// AFMoE: Trinity Nano, Mini, Large. Norms before and after attention and feed-forward; local layers
// rotate, global ones have no positions; each element of attention passes a gate; experts beside a
// shared one.
class Afmoe : public Transformer {
 public:
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w);

  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    QkvWeights qkv;
    ggml_tensor *attn_norm, *q_norm, *k_norm, *gate, *attn_output, *post_attention_norm;
    ggml_tensor *ffn_norm, *post_ffw_norm;
    FeedForward ffn;
  };
  ggml_tensor* embed(GraphBuilder& g) const override {
    return g.scale(g.embed(token_embd_), std::sqrt(static_cast<float>(n_embd_)));
  }
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const override;
  ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const override;
  ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const override {
    return g.linear(output_, g.rms_norm(x, output_norm_, eps_));
  }

  float eps_ = 0;
  std::vector<Layer> layers_;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* Afmoe::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  ggml_tensor* a = g.rms_norm(x, layer.attn_norm, eps_);
  auto [q, k, v] = layer.qkv.project_heads(g, a);
  q = g.rope(g.rms_norm(q, layer.q_norm, eps_), layer.rope);
  k = g.rope(g.rms_norm(k, layer.k_norm, eps_), layer.rope);
  ggml_tensor* o =
      g.attend(i, {.scale = 1.0f / std::sqrt(static_cast<float>(layer.qkv.k_dim))}, q, k, v);
  return gate_heads(g, o, ggml_sigmoid(g.context(), g.linear(layer.gate, a)), layer.qkv.v_dim);
}

ggml_tensor* Afmoe::rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  ggml_tensor* o = g.linear(layer.attn_output, attended);
  x = g.add(g.rms_norm(o, layer.post_attention_norm, eps_), x);
  ggml_tensor* f = layer.ffn.apply(g, g.rms_norm(x, layer.ffn_norm, eps_));
  return g.add(g.rms_norm(f, layer.post_ffw_norm, eps_), x);
}

// --- keys and tensors ---------------------------------------------------------------------------

// Without a window in the file every layer reads everything, and those that would be local rotate.
RopeRule::On rotates(int layer, bool windows) {
  constexpr int kPeriod = 4;
  if (windows) return RopeRule::On::local;
  return (layer + 1) % kPeriod == 0 ? RopeRule::On::none : RopeRule::On::all;
}

Result<std::unique_ptr<FamilyModel>> Afmoe::open(WeightLoader& w) {
  auto model = std::make_unique<Afmoe>();
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  const int64_t n_embd = model->n_embd_;
  model->eps_ = w.positive("attention.layer_norm_rms_epsilon");
  const Router router = read_router(w, Gating::sigmoid);
  const int64_t n_dense = w.integer("leading_dense_block_count", 0);
  const int64_t n_ff = read_width(w, "feed_forward_length");
  const int64_t n_ff_exp = read_width(w, "expert_feed_forward_length");
  const int64_t n_shared = w.integer("expert_shared_count");
  if (n_shared < 0 || n_shared > router.n_expert)
    w.fail(Code::corrupt,
           "key " + w.full_key("expert_shared_count") + " is " + std::to_string(n_shared));
  if (!w.status().ok()) return w.status();
  bool windows = false;
  for (const KvLayer& kv : w.geometry().layers) windows |= kv.retention.kind != LayerKind::global;
  for (const KvLayer& kv : w.geometry().layers) {
    const std::string b = block_prefix(kv.index);
    Layer layer;
    layer.rope = read_rope(w, kv, {.rotates = rotates(kv.index, windows)});
    layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd);
    layer.qkv = QkvWeights::read(w, kv, n_embd);
    layer.q_norm = w.vector(b + "attn_q_norm.weight", kv.k_dim);
    layer.k_norm = w.vector(b + "attn_k_norm.weight", kv.k_dim);
    const int64_t width = int64_t{kv.n_heads} * kv.v_dim;
    layer.gate = w.matrix(b + "attn_gate.weight", n_embd, width);
    layer.attn_output = w.matrix(b + "attn_output.weight", width, n_embd);
    layer.post_attention_norm = w.vector(b + "post_attention_norm.weight", n_embd);
    layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd);
    layer.post_ffw_norm = w.vector(b + "post_ffw_norm.weight", n_embd);
    if (kv.index < n_dense) {
      layer.ffn = FeedForward::read_dense(w, kv.index, n_embd, n_ff);
    } else {
      layer.ffn = FeedForward::read_experts(w, kv.index, n_embd, n_ff_exp, router);
      layer.ffn.router.choice_bias = w.vector(b + "exp_probs_b.bias", router.n_expert);
      if (n_shared > 0)
        layer.ffn.dense = read_shared_expert(w, kv.index, n_embd, n_shared * n_ff_exp);
    }
    if (!w.status().ok()) return w.status();
    model->layers_.push_back(layer);
  }
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

void synthesize_afmoe(const ModelFacts& m, SynthFile& file) {
  const std::string a = m.gguf_arch + ".";
  synth_common_keys(m, file, {.eps = 1e-5f});
  synth_expert_keys(m, file);
  file.key(a + "leading_dense_block_count", static_cast<uint32_t>(m.n_dense_lead));
  file.key(a + "expert_shared_count", static_cast<uint32_t>(m.n_expert_shared));
  file.key(a + "expert_weights_scale", 2.826f);
  file.flag(a + "expert_weights_norm", true);
  synth_ends(m, file);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    const LayerKindFacts& kind = kind_of(m, i);
    file.norm(b + "attn_norm.weight", m.n_embd);
    synth_attention(m, kind, b, file);
    file.norm(b + "attn_q_norm.weight", kind.head_dim_k, kSynthSharpness);
    file.norm(b + "attn_k_norm.weight", kind.head_dim_k, kSynthSharpness);
    file.matrix(b + "attn_gate.weight", m.n_embd, int64_t{kind.n_head} * kind.head_dim_v);
    file.norm(b + "post_attention_norm.weight", m.n_embd);
    file.norm(b + "ffn_norm.weight", m.n_embd);
    file.norm(b + "post_ffw_norm.weight", m.n_embd);
    if (i < m.n_dense_lead) {
      synth_ffn(m, b, file);
      continue;
    }
    synthesize_experts(
        file, b,
        {.n_embd = m.n_embd, .n_ff = m.n_ff_exp, .n_expert = m.n_expert, .choice_bias = true});
    if (m.n_expert_shared > 0)
      synth_shared_expert(b, m.n_embd, m.n_expert_shared * m.n_ff_exp, file);
  }
}

}  // namespace

const Family kAfmoe = {"afmoe", Afmoe::open, synthesize_afmoe};

}  // namespace weir

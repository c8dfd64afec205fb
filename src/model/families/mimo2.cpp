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

// MiMo-V2. K is wider than V; local layers have twice the KV heads of global ones, and sinks: a
// logit of each head that takes part in the softmax and brings no value. The file's draft layers
// are not read.
class Mimo2 : public Transformer {
 public:
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w);

  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    QkvWeights qkv;
    ggml_tensor *attn_norm, *attn_output, *ffn_norm;
    ggml_tensor* sinks = nullptr;
    FeedForward ffn;
  };
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const override;
  ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const override;
  ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const override {
    return g.linear(output_, g.rms_norm(x, output_norm_, eps_));
  }

  float eps_ = 0;
  float value_scale_ = 1;  // of values; applied to what attention adds to the stream
  std::vector<Layer> layers_;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* Mimo2::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  const auto [q, k, v] = layer.qkv.project_heads(g, g.rms_norm(x, layer.attn_norm, eps_));
  AttentionParams params = {.scale = 1.0f / std::sqrt(static_cast<float>(layer.qkv.k_dim))};
  if (layer.sinks) params.sinks = static_cast<const float*>(layer.sinks->data);
  return g.attend(i, params, g.rope(q, layer.rope), g.rope(k, layer.rope), v);
}

ggml_tensor* Mimo2::rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  x = g.add(g.scale(g.linear(layer.attn_output, attended), value_scale_), x);
  return g.add(layer.ffn.apply(g, g.rms_norm(x, layer.ffn_norm, eps_)), x);
}

// --- keys and tensors ---------------------------------------------------------------------------

Result<std::unique_ptr<FamilyModel>> Mimo2::open(WeightLoader& w) {
  auto model = std::make_unique<Mimo2>();
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  const int64_t n_embd = model->n_embd_;
  model->eps_ = w.positive("attention.layer_norm_rms_epsilon");
  model->value_scale_ = w.number("attention.value_scale", 1.0f);
  Router router = read_router(w, Gating::sigmoid);
  router.normalize = true;
  const int64_t n_ff = read_width(w, "feed_forward_length");
  const int64_t n_ff_exp = read_width(w, "expert_feed_forward_length");
  for (const KvLayer& kv : w.geometry().layers) {
    const std::string b = block_prefix(kv.index);
    const bool is_local = kv.retention.kind != LayerKind::global;
    Layer layer;
    layer.rope = read_rope(w, kv, {.local_theta = 10000.0f});
    layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd);
    layer.qkv = QkvWeights::read(w, kv, n_embd);
    if (is_local || w.has(b + "attn_sinks.weight"))
      layer.sinks = w.vector(b + "attn_sinks.weight", kv.n_heads);
    layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd);
    layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd);
    // No key says which layers are dense.
    if (w.has(b + "ffn_gate.weight")) {
      layer.ffn = FeedForward::read_dense(w, kv.index, n_embd, n_ff);
    } else {
      layer.ffn = FeedForward::read_experts(w, kv.index, n_embd, n_ff_exp, router);
      layer.ffn.router.choice_bias = w.vector_if_present(b + "exp_probs_b.bias", router.n_expert);
    }
    if (!w.status().ok()) return w.status();
    model->layers_.push_back(layer);
  }
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

void synthesize_mimo2_attention(const ModelFacts& m, int layer, SynthFile& file) {
  const std::string b = block_prefix(layer);
  const LayerKindFacts& kind = kind_of(m, layer);
  const int64_t width = int64_t{kind.n_head + kind.n_head_kv} * kind.head_dim_k +
                        int64_t{kind.n_head_kv} * kind.head_dim_v;
  file.norm(b + "attn_norm.weight", m.n_embd);
  file.matrix(b + "attn_qkv.weight", m.n_embd, width, kSynthSharpness);
  if (layer >= m.n_layers || !m.is_global(layer)) synth_sinks(b, kind.n_head, file);
  file.matrix(b + "attn_output.weight", int64_t{kind.n_head} * kind.head_dim_v, m.n_embd);
}

void synthesize_mimo2(const ModelFacts& m, SynthFile& file) {
  const std::string a = m.gguf_arch + ".";
  synth_common_keys(m, file, {.eps = 1e-5f});
  synth_expert_keys(m, file);
  synth_draft_keys(m, file);
  // Not for draft layers, unlike the arrays of heads.
  std::vector<uint32_t> pattern;
  for (int i = 0; i < m.n_layers; ++i) pattern.push_back(m.is_global(i) ? 0 : 1);
  file.array(a + "attention.sliding_window_pattern", pattern);
  file.key(a + "attention.value_scale", 0.707f);
  synth_ends(m, file);
  for (int i = 0; i < m.n_layers + m.n_mtp_layers; ++i) {
    const std::string b = block_prefix(i);
    const bool is_draft = i >= m.n_layers;
    synthesize_mimo2_attention(m, i, file);
    file.norm(b + "ffn_norm.weight", m.n_embd);
    if (is_draft) synth_draft_ends(m, b, file);
    if (is_draft || i < m.n_dense_lead)
      synth_ffn(m, b, file);
    else
      synthesize_experts(
          file, b,
          {.n_embd = m.n_embd, .n_ff = m.n_ff_exp, .n_expert = m.n_expert, .choice_bias = true});
  }
}

}  // namespace

const Family kMimo2 = {"mimo2", Mimo2::open, synthesize_mimo2};

}  // namespace weir

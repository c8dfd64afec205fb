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

// gpt-oss 20B and 120B. Local and global layers in turn, all rotated with YaRN; each head has a
// sink, a logit that takes part in the softmax and brings no value; biases everywhere; experts with
// a clamped activation, weighed by a softmax over the chosen logits.
//
// YaRN's ramp ends between pairs, at 8.09 and 17.40 of 32, as in the vendor's code and config
// (truncate: false). The files have no key for that and llama.cpp rounds the ends to 8 and 18, so
// that its logits drift from these with distance.
class GptOss : public Transformer {
 public:
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w);

  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    QkvWeights qkv;
    ggml_tensor *attn_norm, *sinks, *attn_output, *attn_output_bias;
    ggml_tensor* ffn_norm;  // the file calls it post_attention_norm
    Router router;
    Experts experts;
  };
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const override;
  ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const override;
  ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const override {
    return g.linear(output_, g.rms_norm(x, output_norm_, eps_));
  }
  ggml_tensor* experts(GraphBuilder& g, const Layer& layer, ggml_tensor* x) const;
  RopeLayer read_rope_of(WeightLoader& w, const KvLayer& kv);

  float eps_ = 0;
  std::vector<RopeDivisors> rope_divisors_;  // one set a layer
  std::vector<Layer> layers_;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* GptOss::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  const auto [q, k, v] = layer.qkv.project_heads(g, g.rms_norm(x, layer.attn_norm, eps_));
  const float scale = 1.0f / std::sqrt(static_cast<float>(layer.qkv.k_dim));
  const AttentionParams params = {.scale = scale,
                                  .sinks = static_cast<const float*>(layer.sinks->data)};
  return g.attend(i, params, g.rope(q, layer.rope), g.rope(k, layer.rope), v);
}

ggml_tensor* GptOss::experts(GraphBuilder& g, const Layer& layer, ggml_tensor* x) const {
  ggml_tensor* f = g.rms_norm(x, layer.ffn_norm, eps_);
  const Routing routing =
      route(g.context(), layer.router, g.linear(layer.router.weight, f, layer.router.bias));
  return apply_experts(g.context(), layer.experts, routing, f);
}

ggml_tensor* GptOss::rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  x = g.add(g.linear(layer.attn_output, attended, layer.attn_output_bias), x);
  return g.add(experts(g, layer, x), x);
}

// --- keys and tensors ---------------------------------------------------------------------------

RopeLayer GptOss::read_rope_of(WeightLoader& w, const KvLayer& kv) {
  RopeLayer rope = read_rope(w, kv, {});
  if (!w.status().ok() || !rope.yarn || rope.n_rot == 0) return rope;
  if (w.options().rope_of_llama_cpp) return rope;
  rope_divisors_.emplace_back(unrounded_yarn_divisors(rope));
  rope.divisors = rope_divisors_.back().tensor();
  rope.yarn.reset();
  rope.scale = 1;
  return rope;
}

Result<std::unique_ptr<FamilyModel>> GptOss::open(WeightLoader& w) {
  auto model = std::make_unique<GptOss>();
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  const int64_t n_embd = model->n_embd_;
  model->eps_ = w.positive("attention.layer_norm_rms_epsilon");
  Router router = read_router(w, Gating::softmax_of_chosen);
  const int64_t n_ff = read_width(w, "expert_feed_forward_length");
  for (const KvLayer& kv : w.geometry().layers) {
    const std::string b = block_prefix(kv.index);
    Layer layer;
    layer.rope = model->read_rope_of(w, kv);
    layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd);
    layer.qkv = QkvWeights::read(w, kv, n_embd);
    if (!layer.qkv.qkv && !layer.qkv.q_bias) w.vector(b + "attn_q.bias", kv.n_heads * kv.k_dim);
    layer.sinks = w.vector(b + "attn_sinks.weight", kv.n_heads);
    layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd);
    layer.attn_output_bias = w.vector(b + "attn_output.bias", n_embd);
    layer.ffn_norm = w.vector(b + "post_attention_norm.weight", n_embd);
    layer.router = router;
    read_router_weight(w, b, n_embd, true, layer.router);
    layer.experts = read_experts(w, b, n_embd, n_ff, router.n_expert, true);
    layer.experts.activation = ExpertActivation::clamped_swiglu;
    if (!w.status().ok()) return w.status();
    model->layers_.push_back(layer);
  }
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

void synthesize_gpt_oss(const ModelFacts& m, SynthFile& file) {
  // Deviations of biases. Gates and values of experts meet the clamps at 7.
  constexpr float kBias = 0.3f, kExpertBias = 4.0f;
  synth_common_keys(m, file, {.eps = 1e-5f});
  synth_expert_keys(m, file);
  synth_ends(m, file);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    const LayerKindFacts& kind = kind_of(m, i);
    file.norm(b + "attn_norm.weight", m.n_embd);
    synth_attention(m, kind, b, file, kSynthSharpness);
    file.vector(b + "attn_q.bias", int64_t{kind.n_head} * kind.head_dim_k, 0, kBias);
    file.vector(b + "attn_k.bias", int64_t{kind.n_head_kv} * kind.head_dim_k, 0, kBias);
    file.vector(b + "attn_v.bias", int64_t{kind.n_head_kv} * kind.head_dim_v, 0, kBias);
    file.vector(b + "attn_output.bias", m.n_embd, 0, kBias);
    synth_sinks(b, kind.n_head, file);
    file.norm(b + "post_attention_norm.weight", m.n_embd);
    synthesize_experts(
        file, b,
        {.n_embd = m.n_embd, .n_ff = m.n_ff_exp, .n_expert = m.n_expert, .bias = kExpertBias});
  }
}

}  // namespace

const Family kGptOss = {"gpt-oss", GptOss::open, synthesize_gpt_oss};

}  // namespace weir

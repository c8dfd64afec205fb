#include <cmath>
#include <vector>

#include "geometry/builtin.h"
#include "model/families/moe_layers.h"
#include "model/families/transformer.h"
#include "model/rope_keys.h"
#include "model/synth_file.h"
#include "model/synth_keys.h"
#include "model/weight_loader.h"

namespace weir {
namespace {

// Llama 4 Scout and Maverick, text. Local layers read their own chunk of 8192 positions and rotate;
// global layers have no positions and sharpen their queries with the distance from the start. One
// expert a token, weighed before it computes, beside a shared one.
class Llama4 : public Transformer {
 public:
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w);

  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    bool rotates = true;
    QkvWeights qkv;
    ggml_tensor *attn_norm, *attn_output, *ffn_norm;
    FeedForward ffn;
  };
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const override;
  ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const override;
  ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const override {
    return g.linear(output_, g.rms_norm(x, output_norm_, eps_));
  }

  float eps_ = 0;
  bool qk_norm_ = false;
  std::vector<Layer> layers_;
};

// The factor on queries of global layers. The files have no keys for its numbers.
float query_factor(int64_t position) {
  constexpr double kScale = 0.1, kStep = 8192;
  return static_cast<float>(
      1 + kScale * std::log1p(std::floor((static_cast<double>(position) + 1) / kStep)));
}

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* Llama4::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  auto [q, k, v] = layer.qkv.project_heads(g, g.rms_norm(x, layer.attn_norm, eps_));
  if (layer.rotates) {
    q = g.rope(q, layer.rope);
    k = g.rope(k, layer.rope);
    if (qk_norm_) {
      q = g.rms_norm(q, nullptr, eps_);
      k = g.rms_norm(k, nullptr, eps_);
    }
  } else {
    q = g.mul(q, g.of_position(query_factor));
  }
  return g.attend(i, {.scale = 1.0f / std::sqrt(static_cast<float>(layer.qkv.k_dim))}, q, k, v);
}

ggml_tensor* Llama4::rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  x = g.add(g.linear(layer.attn_output, attended), x);
  return g.add(layer.ffn.apply(g, g.rms_norm(x, layer.ffn_norm, eps_)), x);
}

// --- keys and tensors ---------------------------------------------------------------------------

Result<std::unique_ptr<FamilyModel>> Llama4::open(WeightLoader& w) {
  auto model = std::make_unique<Llama4>();
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  const int64_t n_embd = model->n_embd_;
  model->eps_ = w.positive("attention.layer_norm_rms_epsilon");
  Router router = read_router(w, Gating::sigmoid);
  router.by_logit = true;
  // Only the model with 128 experts, Maverick, has no norm on q and k; no key says so.
  model->qk_norm_ = router.n_expert != 128;
  const int64_t n_ff = read_width(w, "feed_forward_length");
  const int64_t n_ff_exp = read_width(w, "expert_feed_forward_length");
  const int64_t step = w.integer("interleave_moe_layer_step");
  if (step < 0)
    w.fail(Code::corrupt, "key " + w.full_key("interleave_moe_layer_step") + " is negative");

  // A model whose window is switched off rotates everywhere.
  bool has_chunks = false;
  for (const KvLayer& kv : w.geometry().layers)
    has_chunks |= kv.retention.kind != LayerKind::global;
  const RopeRule rule = {.neox = false,
                         .rotates = has_chunks ? RopeRule::On::local : RopeRule::On::all,
                         .divided = RopeRule::On::all};
  for (const KvLayer& kv : w.geometry().layers) {
    const std::string b = block_prefix(kv.index);
    Layer layer;
    layer.rope = read_rope(w, kv, rule);
    layer.rotates = layer.rope.n_rot > 0;
    layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd);
    layer.qkv = QkvWeights::read(w, kv, n_embd);
    layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd);
    layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd);
    if (step > 0 && (kv.index + 1) % step == 0) {
      layer.ffn = FeedForward::read_experts(w, kv.index, n_embd, n_ff_exp, router);
      layer.ffn.weight_side = WeightSide::input;
      layer.ffn.dense = read_shared_expert(w, kv.index, n_embd, n_ff_exp);
    } else {
      layer.ffn = FeedForward::read_dense(w, kv.index, n_embd, n_ff);
    }
    if (!w.status().ok()) return w.status();
    model->layers_.push_back(layer);
  }
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

void synthesize_llama4(const ModelFacts& m, SynthFile& file) {
  synth_common_keys(m, file, {.eps = 1e-5f});
  synth_expert_keys(m, file);
  file.key(m.gguf_arch + ".interleave_moe_layer_step", static_cast<uint32_t>(m.moe_every));
  synth_rope_tensors(m, file);
  synth_ends(m, file);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    file.norm(b + "attn_norm.weight", m.n_embd);
    synth_attention(m, kind_of(m, i), b, file, kSynthSharpness);
    file.norm(b + "ffn_norm.weight", m.n_embd);
    if ((i + 1) % m.moe_every == 0) {
      synthesize_experts(file, b, {.n_embd = m.n_embd, .n_ff = m.n_ff_exp, .n_expert = m.n_expert});
      synth_shared_expert(b, m.n_embd, m.n_ff_exp, file);
    } else {
      synth_ffn(m, b, file);
    }
  }
}

}  // namespace

const Family kLlama4 = {"llama4", Llama4::open, synthesize_llama4};

}  // namespace weir

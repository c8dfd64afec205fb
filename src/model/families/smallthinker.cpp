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

// SmallThinker 21B-A3B and 4B-A0.6B. The router reads a layer's input before any norm, so that
// experts could be fetched while attention computes. With a window, local layers rotate and global
// ones have no positions; the model without a window rotates everywhere.
class SmallThinker : public Transformer {
 public:
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w);

  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    QkvWeights qkv;
    ggml_tensor *attn_norm, *attn_output, *ffn_norm;
    Router router;
    Experts experts;
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

ggml_tensor* SmallThinker::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  const auto [q, k, v] = layer.qkv.project_heads(g, g.rms_norm(x, layer.attn_norm, eps_));
  return g.attend(i, {.scale = 1.0f / std::sqrt(static_cast<float>(layer.qkv.k_dim))},
                  g.rope(q, layer.rope), g.rope(k, layer.rope), v);
}

ggml_tensor* SmallThinker::rest(GraphBuilder& g, int i, ggml_tensor* x,
                                ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  const Routing routing =
      route(g.context(), layer.router, g.linear(layer.router.weight, x, layer.router.bias));
  x = g.add(g.linear(layer.attn_output, attended), x);
  ggml_tensor* f = g.rms_norm(x, layer.ffn_norm, eps_);
  return g.add(apply_experts(g.context(), layer.experts, routing, f), x);
}

// --- keys and tensors ---------------------------------------------------------------------------

Result<std::unique_ptr<FamilyModel>> SmallThinker::open(WeightLoader& w) {
  auto model = std::make_unique<SmallThinker>();
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  const int64_t n_embd = model->n_embd_;
  model->eps_ = w.positive("attention.layer_norm_rms_epsilon");
  Router router = read_router(w, Gating::sigmoid);
  router.normalize = true;
  const int64_t n_ff = read_width(w, "expert_feed_forward_length");
  bool has_window = false;
  for (const KvLayer& kv : w.geometry().layers)
    has_window |= kv.retention.kind != LayerKind::global;
  const RopeRule rule = {.rotates = has_window ? RopeRule::On::local : RopeRule::On::all};
  for (const KvLayer& kv : w.geometry().layers) {
    const std::string b = block_prefix(kv.index);
    Layer layer;
    layer.rope = read_rope(w, kv, rule);
    layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd);
    layer.qkv = QkvWeights::read(w, kv, n_embd);
    layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd);
    layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd);
    layer.router = router;
    read_router_weight(w, b, n_embd, false, layer.router);
    layer.experts = read_experts(w, b, n_embd, n_ff, router.n_expert, false);
    layer.experts.activation = ExpertActivation::relu;
    if (!w.status().ok()) return w.status();
    model->layers_.push_back(layer);
  }
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

void synthesize_smallthinker(const ModelFacts& m, SynthFile& file) {
  constexpr uint32_t kSigmoid = 2;  // of expert_gating_func
  synth_common_keys(m, file);
  synth_expert_keys(m, file);
  file.key(m.gguf_arch + ".expert_gating_func", kSigmoid);
  synth_ends(m, file);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    file.norm(b + "attn_norm.weight", m.n_embd);
    synth_attention(m, kind_of(m, i), b, file, kSynthSharpness);
    file.norm(b + "ffn_norm.weight", m.n_embd);
    synthesize_experts(file, b, {.n_embd = m.n_embd, .n_ff = m.n_ff_exp, .n_expert = m.n_expert});
  }
}

}  // namespace

const Family kSmallThinker = {"smallthinker", SmallThinker::open, synthesize_smallthinker};

}  // namespace weir

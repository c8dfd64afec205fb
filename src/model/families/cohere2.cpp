#include <cmath>
#include <vector>

#include "geometry/builtin.h"
#include "model/families/layers.h"
#include "model/families/transformer.h"
#include "model/rope_keys.h"
#include "model/synth_file.h"
#include "model/synth_keys.h"
#include "model/weight_loader.h"

namespace weir {
namespace {

// Command R7B, Command A. Attention and feed-forward side by side behind one LayerNorm; global
// layers know no positions.
class Cohere2 : public Transformer {
 public:
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w);
  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    QkvWeights qkv;
    FfnWeights ffn;
    ggml_tensor *norm, *attn_output;
  };
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const override;
  ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const override;
  ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const override;

  float eps_ = 0, logit_scale_ = 1;
  std::vector<Layer> layers_;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* Cohere2::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  const auto [q, k, v] = layer.qkv.project_heads(g, g.layer_norm(x, layer.norm, eps_));
  const float scale = 1.0f / std::sqrt(static_cast<float>(layer.qkv.k_dim));
  return g.attend(i, {.scale = scale}, g.rope(q, layer.rope), g.rope(k, layer.rope), v);
}

// The norm is computed again: a fraction of a layer's work, and only rows that go on.
ggml_tensor* Cohere2::rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  ggml_tensor* n = g.layer_norm(x, layer.norm, eps_);
  ggml_tensor* f = layer.ffn.apply(g, Activation::silu, n);
  return g.add(g.add(f, x), g.linear(layer.attn_output, attended));
}

ggml_tensor* Cohere2::logits(GraphBuilder& g, ggml_tensor* x) const {
  return g.scale(g.linear(output_, g.layer_norm(x, output_norm_, eps_)), logit_scale_);
}

// --- keys and tensors ---------------------------------------------------------------------------

Result<std::unique_ptr<FamilyModel>> Cohere2::open(WeightLoader& w) {
  auto model = std::make_unique<Cohere2>();
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  model->eps_ = w.positive("attention.layer_norm_epsilon");
  model->logit_scale_ = w.positive("logit_scale");
  const int64_t n_embd = model->n_embd_, n_ff = w.integer("feed_forward_length");
  const RopeRule rope{.neox = false, .rotates = RopeRule::On::local};
  for (const KvLayer& kv : w.geometry().layers) {
    const std::string b = block_prefix(kv.index);
    Layer layer{};
    layer.rope = read_rope(w, kv, rope);
    layer.norm = w.vector(b + "attn_norm.weight", n_embd);
    layer.qkv = QkvWeights::read(w, kv, n_embd);
    layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd);
    layer.ffn = FfnWeights::read(w, kv.index, n_embd, n_ff);
    model->layers_.push_back(layer);
  }
  if (!w.status().ok()) return w.status();
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

void synthesize_cohere2(const ModelFacts& m, SynthFile& file) {
  synth_common_keys(m, file, {.eps_key = "attention.layer_norm_epsilon", .eps = 1e-5f});
  file.key("cohere2.logit_scale", static_cast<float>(m.logit_scale));
  synth_ends(m, file);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    file.norm(b + "attn_norm.weight", m.n_embd);
    synth_attention(m, kind_of(m, i), b, file);
    synth_ffn(m, b, file);
  }
}

}  // namespace

const Family kCohere2 = {"cohere2", Cohere2::open, synthesize_cohere2};

}  // namespace weir

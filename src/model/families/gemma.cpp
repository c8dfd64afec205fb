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

// Gemma 2 and 3, text. Norms before and after attention and feed-forward. Gemma 2 caps its scores
// and logits; Gemma 3 norms q and k per head instead and has a rope of its own for each kind of
// layer.
class Gemma : public Transformer {
 public:
  // How the two differ.
  struct Version {
    bool has_qk_norms;
    float score_cap, logit_cap;  // where the file does not say; 0: none
    RopeRule rope;
    size_t layers_of_wide_scale;  // the one size that scales scores another way
  };
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w, const Version& version);
  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    QkvWeights qkv;
    FfnWeights ffn;
    ggml_tensor *attn_norm, *q_norm, *k_norm, *attn_output, *post_attention_norm;
    ggml_tensor *ffn_norm, *post_ffw_norm;
  };
  ggml_tensor* embed(GraphBuilder& g) const override;
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const override;
  ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const override;
  ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const override;
  void read_layer(WeightLoader& w, const KvLayer& kv, int64_t n_ff, const Version& version);

  float eps_ = 0, attn_scale_ = 1, score_cap_ = 0, logit_cap_ = 0;
  std::vector<Layer> layers_;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* Gemma::embed(GraphBuilder& g) const {
  return g.scale(g.embed(token_embd_), std::sqrt(static_cast<float>(n_embd_)));
}

ggml_tensor* Gemma::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  auto [q, k, v] = layer.qkv.project_heads(g, g.rms_norm(x, layer.attn_norm, eps_));
  if (layer.q_norm) {
    q = g.rms_norm(q, layer.q_norm, eps_);
    k = g.rms_norm(k, layer.k_norm, eps_);
  }
  q = g.rope(q, layer.rope);
  k = g.rope(k, layer.rope);
  return g.attend(i, {.scale = attn_scale_, .softcap = score_cap_}, q, k, v);
}

ggml_tensor* Gemma::rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  ggml_tensor* o = g.linear(layer.attn_output, attended);
  x = g.add(g.rms_norm(o, layer.post_attention_norm, eps_), x);
  ggml_tensor* f = layer.ffn.apply(g, Activation::gelu, g.rms_norm(x, layer.ffn_norm, eps_));
  return g.add(g.rms_norm(f, layer.post_ffw_norm, eps_), x);
}

ggml_tensor* Gemma::logits(GraphBuilder& g, ggml_tensor* x) const {
  ggml_tensor* out = g.linear(output_, g.rms_norm(x, output_norm_, eps_));
  return logit_cap_ > 0 ? g.softcap(out, logit_cap_) : out;
}

// --- keys and tensors ---------------------------------------------------------------------------

void Gemma::read_layer(WeightLoader& w, const KvLayer& kv, int64_t n_ff, const Version& version) {
  const std::string b = block_prefix(kv.index);
  Layer layer{};
  layer.rope = read_rope(w, kv, version.rope);
  layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd_);
  layer.qkv = QkvWeights::read(w, kv, n_embd_);
  if (version.has_qk_norms) {
    layer.q_norm = w.vector(b + "attn_q_norm.weight", kv.k_dim);
    layer.k_norm = w.vector(b + "attn_k_norm.weight", kv.k_dim);
  }
  layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd_);
  layer.post_attention_norm = w.vector(b + "post_attention_norm.weight", n_embd_);
  layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd_);
  layer.ffn = FfnWeights::read(w, kv.index, n_embd_, n_ff);
  layer.post_ffw_norm = w.vector(b + "post_ffw_norm.weight", n_embd_);
  layers_.push_back(layer);
}

Result<std::unique_ptr<FamilyModel>> Gemma::open(WeightLoader& w, const Version& version) {
  auto model = std::make_unique<Gemma>();
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  model->eps_ = w.positive("attention.layer_norm_rms_epsilon");
  model->score_cap_ = w.number("attn_logit_softcapping", version.score_cap);
  model->logit_cap_ = w.number("final_logit_softcapping", version.logit_cap);
  if (model->score_cap_ < 0 || model->logit_cap_ < 0)
    w.fail(Code::corrupt, "key " + w.full_key("attn_logit_softcapping") +
                              " or final_logit_softcapping is negative");
  const int64_t n_ff = w.integer("feed_forward_length");
  for (const KvLayer& kv : w.geometry().layers) model->read_layer(w, kv, n_ff, version);

  // Only the 27B models scale scores by the width of a head's share of the residual stream instead
  // of the head's own.
  const std::vector<KvLayer>& layers = w.geometry().layers;
  const int64_t scale_width = layers.size() == version.layers_of_wide_scale
                                  ? model->n_embd_ / layers[0].n_heads
                                  : layers[0].k_dim;
  model->attn_scale_ = 1.0f / std::sqrt(static_cast<float>(scale_width));
  if (!w.status().ok()) return w.status();
  return std::unique_ptr<FamilyModel>(std::move(model));
}

const Gemma::Version kVersion2{.has_qk_norms = false,
                               .score_cap = 50,
                               .logit_cap = 30,
                               .rope = {.scaled = RopeRule::On::all},
                               .layers_of_wide_scale = 46};
// Positions are scaled in global layers only; a model without a window has no others.
const Gemma::Version kVersion3{.has_qk_norms = true,
                               .score_cap = 0,
                               .logit_cap = 0,
                               .rope = {.scaled = RopeRule::On::global, .local_theta = 10000.0f},
                               .layers_of_wide_scale = 62};

// --- synthetic models ---------------------------------------------------------------------------

void synthesize_gemma(const ModelFacts& m, SynthFile& file) {
  const bool has_qk_norms = m.gguf_arch == "gemma3";
  synth_common_keys(m, file);
  if (m.attn_softcap > 0)
    file.key(m.gguf_arch + ".attn_logit_softcapping", static_cast<float>(m.attn_softcap));
  if (m.final_softcap > 0)
    file.key(m.gguf_arch + ".final_logit_softcapping", static_cast<float>(m.final_softcap));
  synth_ends(m, file);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    const LayerKindFacts& kind = kind_of(m, i);
    file.norm(b + "attn_norm.weight", m.n_embd);
    synth_attention(m, kind, b, file);
    if (has_qk_norms) {
      file.norm(b + "attn_q_norm.weight", kind.head_dim_k, kSynthSharpness);
      file.norm(b + "attn_k_norm.weight", kind.head_dim_k, kSynthSharpness);
    }
    file.norm(b + "post_attention_norm.weight", m.n_embd);
    file.norm(b + "ffn_norm.weight", m.n_embd);
    synth_ffn(m, b, file);
    file.norm(b + "post_ffw_norm.weight", m.n_embd);
  }
}

}  // namespace

const Family kGemma2 = {"gemma2", [](WeightLoader& w) { return Gemma::open(w, kVersion2); },
                        synthesize_gemma};
const Family kGemma3 = {"gemma3", [](WeightLoader& w) { return Gemma::open(w, kVersion3); },
                        synthesize_gemma};

}  // namespace weir

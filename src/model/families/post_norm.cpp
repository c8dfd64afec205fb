#include <algorithm>
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

// OLMo 2 and 3, EXAONE 4: no norm before attention and feed-forward, one behind each. q and k are
// normed, over their whole width in OLMo and per head in EXAONE.
class PostNorm : public Transformer {
 public:
  static Result<std::unique_ptr<FamilyModel>> open_olmo2(WeightLoader& w);
  static Result<std::unique_ptr<FamilyModel>> open_exaone4(WeightLoader& w);
  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    QkvWeights qkv;
    FfnWeights ffn;
    ggml_tensor *q_norm, *k_norm, *attn_output, *post_attention_norm, *post_ffw_norm;
  };
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w, bool norms_per_head,
                                                   const RopeRule& rope);
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const override;
  ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const override;
  ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const override;

  bool norms_per_head_ = false;
  float eps_ = 0;
  std::vector<Layer> layers_;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* PostNorm::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  const int64_t d = layer.qkv.k_dim;
  auto [q, k, v] = layer.qkv.project(g, x);
  const auto normed_heads = [&](ggml_tensor* y, ggml_tensor* weight) {
    return norms_per_head_ ? g.rms_norm(g.heads(y, d), weight, eps_)
                           : g.heads(g.rms_norm(y, weight, eps_), d);
  };
  q = g.rope(normed_heads(q, layer.q_norm), layer.rope);
  k = g.rope(normed_heads(k, layer.k_norm), layer.rope);
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  return g.attend(i, {.scale = scale}, q, k, g.heads(v, layer.qkv.v_dim));
}

ggml_tensor* PostNorm::rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  ggml_tensor* o = g.linear(layer.attn_output, attended);
  x = g.add(g.rms_norm(o, layer.post_attention_norm, eps_), x);
  ggml_tensor* f = layer.ffn.apply(g, Activation::silu, x);
  return g.add(g.rms_norm(f, layer.post_ffw_norm, eps_), x);
}

ggml_tensor* PostNorm::logits(GraphBuilder& g, ggml_tensor* x) const {
  return g.linear(output_, g.rms_norm(x, output_norm_, eps_));
}

// --- keys and tensors ---------------------------------------------------------------------------

Result<std::unique_ptr<FamilyModel>> PostNorm::open(WeightLoader& w, bool norms_per_head,
                                                    const RopeRule& rope) {
  auto model = std::make_unique<PostNorm>();
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  model->norms_per_head_ = norms_per_head;
  model->eps_ = w.positive("attention.layer_norm_rms_epsilon");
  const int64_t n_embd = model->n_embd_, n_ff = w.integer("feed_forward_length");
  for (const KvLayer& kv : w.geometry().layers) {
    const std::string b = block_prefix(kv.index);
    const auto norm_width = [&](int n_heads) {
      return norms_per_head ? int64_t{kv.k_dim} : int64_t{n_heads} * kv.k_dim;
    };
    Layer layer{};
    layer.rope = read_rope(w, kv, rope);
    layer.qkv = QkvWeights::read_separate(w, kv, n_embd);
    layer.q_norm = w.vector(b + "attn_q_norm.weight", norm_width(kv.n_heads));
    layer.k_norm = w.vector(b + "attn_k_norm.weight", norm_width(kv.n_kv_heads));
    layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd);
    layer.post_attention_norm = w.vector(b + "post_attention_norm.weight", n_embd);
    layer.ffn = FfnWeights::read(w, kv.index, n_embd, n_ff);
    layer.post_ffw_norm = w.vector(b + "post_ffw_norm.weight", n_embd);
    model->layers_.push_back(layer);
  }
  if (!w.status().ok()) return w.status();
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// OLMo 3 is the one with a window: its YaRN acts on global layers only. OLMo 2 has no other layers.
Result<std::unique_ptr<FamilyModel>> PostNorm::open_olmo2(WeightLoader& w) {
  return open(w, false, {.scaled = RopeRule::On::global});
}

// The 32B has a window, and global layers that know no positions. The 1.2B has neither.
Result<std::unique_ptr<FamilyModel>> PostNorm::open_exaone4(WeightLoader& w) {
  const std::vector<KvLayer>& layers = w.geometry().layers;
  const bool has_window = std::any_of(layers.begin(), layers.end(), [](const KvLayer& layer) {
    return layer.retention.kind != LayerKind::global;
  });
  const RopeRule::On rotating = has_window ? RopeRule::On::local : RopeRule::On::all;
  return open(w, true, {.rotates = rotating, .divided = rotating});
}

// --- synthetic models ---------------------------------------------------------------------------

void synthesize_post_norm(const ModelFacts& m, SynthFile& file) {
  const bool norms_per_head = m.gguf_arch == "exaone4";
  synth_common_keys(m, file, {.pattern = true});
  synth_ends(m, file);
  synth_rope_tensors(m, file);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    const LayerKindFacts& kind = kind_of(m, i);
    const auto norm_width = [&](int n_heads) {
      return norms_per_head ? int64_t{kind.head_dim_k} : int64_t{n_heads} * kind.head_dim_k;
    };
    synth_attention(m, kind, b, file);
    file.norm(b + "attn_q_norm.weight", norm_width(kind.n_head), kSynthSharpness);
    file.norm(b + "attn_k_norm.weight", norm_width(kind.n_head_kv), kSynthSharpness);
    file.norm(b + "post_attention_norm.weight", m.n_embd);
    synth_ffn(m, b, file);
    file.norm(b + "post_ffw_norm.weight", m.n_embd);
  }
}

}  // namespace

const Family kOlmo2 = {"olmo2", PostNorm::open_olmo2, synthesize_post_norm};
const Family kExaone4 = {"exaone4", PostNorm::open_exaone4, synthesize_post_norm};

}  // namespace weir

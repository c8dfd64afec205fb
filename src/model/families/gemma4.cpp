#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "geometry/builtin.h"
#include "ggml.h"
#include "model/families/family.h"
#include "model/families/layers.h"
#include "model/families/per_layer_input.h"
#include "model/graph.h"
#include "model/moe.h"
#include "model/rope_keys.h"
#include "model/synth_file.h"
#include "model/synth_keys.h"
#include "model/weight_loader.h"

namespace weir {
namespace {

// Gemma 4, text: E2B, E4B, 12B, 26B-A4B, 31B. Global layers have wider heads than local ones and
// rotate a quarter of them (their frequencies' divisors are all but infinite elsewhere); in the
// larger models one projection gives their K and V. The small ones have per-layer embeddings and
// last layers that read the KV of earlier ones; 26B-A4B has experts beside each feed-forward.
class Gemma4 : public FamilyModel {
 public:
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w);

  ggml_tensor* build(GraphBuilder& g) const override;
  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }
  int64_t n_vocab() const override { return n_vocab_; }
  int64_t n_embd() const override { return n_embd_; }

 private:
  struct Layer {
    RopeLayer rope;
    int k_dim = 0, v_dim = 0;
    int source = 0;  // the layer whose KV it reads
    bool owns_kv = true;
    ggml_tensor *attn_norm, *q, *k, *v, *q_norm, *k_norm, *attn_output, *post_attention_norm;
    ggml_tensor *ffn_norm, *post_ffw_norm;
    FfnWeights ffn;
    ggml_tensor* output_scale = nullptr;
    // Beside the dense feed-forward, where the model has experts.
    Router router;
    ggml_tensor *router_scale, *post_ffw_norm_1, *pre_ffw_norm_2, *post_ffw_norm_2;
    Experts experts;
    PerLayerInput::Layer per_layer;
  };
  Status read_layers(WeightLoader& w);
  void read_attention(WeightLoader& w, const KvLayer& kv, const std::string& b, Layer& layer) const;
  void read_feed_forward(WeightLoader& w, int i, int64_t n_ff, Layer& layer) const;
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const;
  ggml_tensor* feed_forward(GraphBuilder& g, const Layer& layer, ggml_tensor* h) const;
  ggml_tensor* expert_branch(GraphBuilder& g, const Layer& layer, ggml_tensor* h) const;

  int64_t n_embd_ = 0, n_vocab_ = 0, n_ff_expert_ = 0;
  float eps_ = 0, final_softcap_ = 0;
  ggml_tensor *token_embd_ = nullptr, *output_norm_ = nullptr, *output_ = nullptr;
  bool has_per_layer_ = false;
  Router router_;  // n_expert is 0 in a dense model
  PerLayerInput per_layer_;
  std::vector<Layer> layers_;
  int last_owner_ = 0;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* Gemma4::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  ggml_tensor* n = g.rms_norm(x, layer.attn_norm, eps_);
  ggml_tensor* q = g.rms_norm(g.heads(g.linear(layer.q, n), layer.k_dim), layer.q_norm, eps_);
  q = g.rope(q, layer.rope);
  // Where K and V are stored once, the norm's factors turn one into the other.
  const Layer& source = layers_[static_cast<size_t>(layer.source)];
  const AttentionParams params{.key_factors = static_cast<const float*>(source.k_norm->data)};
  if (!layer.owns_kv) return g.attend(i, params, q, nullptr, nullptr);
  ggml_tensor* k = g.heads(g.linear(layer.k, n), layer.k_dim);
  ggml_tensor* v = layer.v ? g.heads(g.linear(layer.v, n), layer.v_dim) : k;
  v = g.rms_norm(v, nullptr, eps_);
  k = g.rms_norm(k, layer.k_norm, eps_);
  return g.attend(i, params, q, g.rope(k, layer.rope), v);
}

ggml_tensor* Gemma4::expert_branch(GraphBuilder& g, const Layer& layer, ggml_tensor* h) const {
  ggml_context* ctx = g.context();
  ggml_tensor* r =
      g.scale(g.rms_norm(h, nullptr, eps_), 1.0f / std::sqrt(static_cast<float>(n_embd_)));
  r = g.mul(r, layer.router_scale);
  const Routing routing = route(ctx, layer.router, g.linear(layer.router.weight, r));
  ggml_tensor* f = g.rms_norm(h, layer.pre_ffw_norm_2, eps_);
  return g.rms_norm(apply_experts(ctx, layer.experts, routing, f), layer.post_ffw_norm_2, eps_);
}

ggml_tensor* Gemma4::feed_forward(GraphBuilder& g, const Layer& layer, ggml_tensor* h) const {
  ggml_tensor* f = g.rms_norm(h, layer.ffn_norm, eps_);
  f = layer.ffn.apply(g, Activation::gelu, f);
  if (layer.router.n_expert > 0)
    f = g.add(g.rms_norm(f, layer.post_ffw_norm_1, eps_), expert_branch(g, layer, h));
  return g.rms_norm(f, layer.post_ffw_norm, eps_);
}

ggml_tensor* Gemma4::build(GraphBuilder& g) const {
  ggml_tensor* x = g.scale(g.embed(token_embd_), std::sqrt(static_cast<float>(n_embd_)));
  ggml_tensor* vectors = has_per_layer_ ? per_layer_.vectors(g, x) : nullptr;
  const int n_layers = static_cast<int>(layers_.size());
  for (int i = 0; i < n_layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    ggml_tensor* o = attention(g, i, x);
    // What follows the last layer with KV of its own matters to logits only.
    if (i == last_owner_ && !g.has_outputs()) return o;
    ggml_tensor* vector = vectors ? per_layer_.of_layer(g, vectors, i) : nullptr;
    if (i + 1 == n_layers) {
      o = g.output_rows(o);
      x = g.output_rows(x);
      if (vector) vector = g.output_rows(vector);
    }
    o = g.rms_norm(g.linear(layer.attn_output, o), layer.post_attention_norm, eps_);
    x = g.add(o, x);
    x = g.add(feed_forward(g, layer, x), x);
    if (vector) x = g.add(x, per_layer_.term(g, layer.per_layer, x, vector));
    if (layer.output_scale) x = g.mul(x, layer.output_scale);
  }
  ggml_tensor* logits = g.linear(output_, g.rms_norm(x, output_norm_, eps_));
  return final_softcap_ > 0 ? g.softcap(logits, final_softcap_) : logits;
}

// --- keys and tensors ---------------------------------------------------------------------------

void Gemma4::read_attention(WeightLoader& w, const KvLayer& kv, const std::string& b,
                            Layer& layer) const {
  layer.k_dim = kv.k_dim;
  layer.v_dim = kv.v_dim;
  layer.source = kv.source;
  layer.owns_kv = kv.owns_kv();
  layer.rope = read_rope(w, kv, {.divided = RopeRule::On::global, .local_theta = 10000.0f});
  const bool is_global = kv.retention.kind == LayerKind::global;
  if (is_global && w.row_length("rope_freqs.weight") != kv.k_dim / 2)
    w.fail(Code::corrupt,
           "tensor rope_freqs.weight, which says what global layers rotate, does not "
           "have one number for each pair of a head");
  layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd_);
  layer.q = w.matrix(b + "attn_q.weight", n_embd_, int64_t{kv.n_heads} * kv.k_dim);
  layer.q_norm = w.vector(b + "attn_q_norm.weight", kv.k_dim);
  layer.k = layer.v = layer.k_norm = nullptr;
  if (layer.owns_kv) {
    layer.k = w.matrix(b + "attn_k.weight", n_embd_, int64_t{kv.n_kv_heads} * kv.k_dim);
    layer.k_norm = w.vector(b + "attn_k_norm.weight", kv.k_dim);
    // Only global layers have one projection for both.
    const int64_t v_width = int64_t{kv.n_kv_heads} * kv.v_dim;
    layer.v = is_global ? w.matrix_if_present(b + "attn_v.weight", n_embd_, v_width)
                        : w.matrix(b + "attn_v.weight", n_embd_, v_width);
    if (!layer.v && kv.k_dim != kv.v_dim)
      w.fail(Code::corrupt, "tensor " + b + "attn_v.weight is missing, and K and V differ in size");
  }
  layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd_);
  layer.post_attention_norm = w.vector(b + "post_attention_norm.weight", n_embd_);
}

void Gemma4::read_feed_forward(WeightLoader& w, int i, int64_t n_ff, Layer& layer) const {
  const std::string b = block_prefix(i);
  layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd_);
  layer.ffn = FfnWeights::read(w, i, n_embd_, n_ff);
  layer.post_ffw_norm = w.vector(b + "post_ffw_norm.weight", n_embd_);
  if (router_.n_expert == 0 || !w.has(b + "ffn_gate_inp.weight")) return;
  layer.router = router_;
  read_router_weight(w, b, n_embd_, false, layer.router);
  layer.router_scale = w.vector(b + "ffn_gate_inp.scale", n_embd_);
  layer.post_ffw_norm_1 = w.vector(b + "post_ffw_norm_1.weight", n_embd_);
  layer.pre_ffw_norm_2 = w.vector(b + "pre_ffw_norm_2.weight", n_embd_);
  layer.post_ffw_norm_2 = w.vector(b + "post_ffw_norm_2.weight", n_embd_);
  layer.experts = read_experts(w, b, n_embd_, n_ff_expert_, router_.n_expert, false);
  layer.experts.activation = ExpertActivation::gelu;
  layer.experts.down_scale = w.vector_if_present(b + "ffn_down_exps.scale", router_.n_expert);
}

Status Gemma4::read_layers(WeightLoader& w) {
  const std::vector<int64_t> n_ff = w.per_layer("feed_forward_length");
  if (!w.status().ok()) return w.status();
  for (const KvLayer& kv : w.geometry().layers) {
    const std::string b = block_prefix(kv.index);
    Layer layer;
    read_attention(w, kv, b, layer);
    if (layer.owns_kv) last_owner_ = kv.index;
    read_feed_forward(w, kv.index, n_ff[static_cast<size_t>(kv.index)], layer);
    if (has_per_layer_) layer.per_layer = per_layer_.read_layer(w, b);
    layer.output_scale = w.vector(b + "layer_output_scale.weight", 1);
    if (!w.status().ok()) break;
    layers_.push_back(layer);
  }
  return w.status();
}

Result<std::unique_ptr<FamilyModel>> Gemma4::open(WeightLoader& w) {
  auto model = std::make_unique<Gemma4>();
  model->n_embd_ = w.integer("embedding_length");
  model->eps_ = w.number("attention.layer_norm_rms_epsilon");
  model->final_softcap_ = w.number("final_logit_softcapping", 0.0f);
  model->n_vocab_ = w.row_count("token_embd.weight");
  if (!(model->final_softcap_ >= 0) || model->eps_ < 0)
    w.fail(Code::corrupt, "a softcap or epsilon of gemma4 is negative");

  model->token_embd_ = w.table("token_embd.weight", model->n_embd_, model->n_vocab_);
  model->output_norm_ = w.vector("output_norm.weight", model->n_embd_);
  model->output_ = w.matrix(w.has("output.weight") ? "output.weight" : "token_embd.weight",
                            model->n_embd_, model->n_vocab_);
  const int64_t width = w.integer("embedding_length_per_layer_input", 0);
  model->has_per_layer_ = width > 0;
  if (model->has_per_layer_)
    model->per_layer_.read(w, model->n_embd_, width, model->n_vocab_, model->eps_);
  if (w.integer("expert_count", 0) > 0) {
    model->router_ = read_router(w, Gating::softmax);
    model->router_.normalize = true;
    model->n_ff_expert_ = w.integer("expert_feed_forward_length");
  }
  if (Status status = model->read_layers(w); !status.ok()) return status;
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

// What a layer adds is small beside what it adds to, as in trained models: otherwise, with the
// scale of layers' outputs, random layers amplify rounding without bounds.
constexpr float kSynthBranch = 0.4f, kSynthOutputScale = 0.9f;

int64_t n_ff_of(const ModelFacts& m, int layer) {
  const bool owns_kv = m.kv_source[static_cast<size_t>(layer)] == layer;
  return owns_kv ? m.n_ff.value_or(0) : m.n_ff_reusing.value_or(m.n_ff.value_or(0));
}

void synthesize_keys(const ModelFacts& m, SynthFile& file) {
  const std::string a = "gemma4.";
  uint32_t n_reusing = 0;
  std::vector<uint32_t> n_ff;
  for (int i = 0; i < m.n_layers; ++i) {
    n_reusing += m.kv_source[static_cast<size_t>(i)] != i;
    n_ff.push_back(static_cast<uint32_t>(n_ff_of(m, i)));
  }
  synth_common_keys(m, file, {.pattern = true});
  file.array(a + "feed_forward_length", n_ff);
  file.key(a + "attention.shared_kv_layers", n_reusing);
  // All elements "rotate"; rope_freqs says which really do.
  const LayerKindFacts& global = m.global ? *m.global : *m.local;
  file.key(a + "rope.dimension_count", static_cast<uint32_t>(global.head_dim_k));
  const LayerKindFacts& local = m.local ? *m.local : global;
  file.key(a + "rope.dimension_count_swa",
           static_cast<uint32_t>(local.rope_dims.value_or(local.head_dim_k)));
  file.key(a + "final_logit_softcapping", static_cast<float>(m.final_softcap));
  file.key(a + "embedding_length_per_layer_input", static_cast<uint32_t>(m.n_embd_per_layer));
  if (m.n_expert > 0) {
    file.key(a + "expert_count", static_cast<uint32_t>(m.n_expert));
    file.key(a + "expert_used_count", static_cast<uint32_t>(m.n_expert_used));
    file.key(a + "expert_feed_forward_length", static_cast<uint32_t>(m.n_ff_exp));
  }
}

void synthesize_attention(const ModelFacts& m, int i, SynthFile& file) {
  const std::string b = block_prefix(i);
  const LayerKindFacts& kind = kind_of(m, i);
  const int64_t q_width = int64_t{kind.n_head} * kind.head_dim_k;
  const int64_t kv_width = int64_t{kind.n_head_kv} * kind.head_dim_k;
  file.norm(b + "attn_norm.weight", m.n_embd);
  file.matrix(b + "attn_q.weight", m.n_embd, q_width);
  // Scores have no factor but these.
  const float sharpness =
      kSynthSharpness / std::sqrt(std::sqrt(static_cast<float>(kind.head_dim_k)));
  file.norm(b + "attn_q_norm.weight", kind.head_dim_k, sharpness);
  if (m.kv_source[static_cast<size_t>(i)] == i) {
    file.matrix(b + "attn_k.weight", m.n_embd, kv_width);
    file.norm(b + "attn_k_norm.weight", kind.head_dim_k, sharpness);
    if (!(m.v_from_k_global && m.is_global(i)))
      file.matrix(b + "attn_v.weight", m.n_embd, kv_width);
  }
  file.matrix(b + "attn_output.weight", q_width, m.n_embd);
  file.norm(b + "post_attention_norm.weight", m.n_embd, kSynthBranch);
}

void synthesize_feed_forward(const ModelFacts& m, int i, SynthFile& file) {
  const std::string b = block_prefix(i);
  ModelFacts of_layer = m;
  of_layer.n_ff = n_ff_of(m, i);
  file.norm(b + "ffn_norm.weight", m.n_embd);
  synth_ffn(of_layer, b, file);
  file.norm(b + "post_ffw_norm.weight", m.n_embd, kSynthBranch);
  if (m.n_expert == 0) return;
  // The router's input is divided by the root of its width.
  file.norm(b + "ffn_gate_inp.scale", m.n_embd, std::sqrt(static_cast<float>(m.n_embd)));
  file.norm(b + "post_ffw_norm_1.weight", m.n_embd);
  file.norm(b + "pre_ffw_norm_2.weight", m.n_embd);
  file.norm(b + "post_ffw_norm_2.weight", m.n_embd);
  synthesize_experts(file, b, {.n_embd = m.n_embd, .n_ff = m.n_ff_exp, .n_expert = m.n_expert});
  file.norm(b + "ffn_down_exps.scale", m.n_expert);
}

// The divisors of a global layer's frequencies: 1 where a pair rotates, and what converters write
// for infinity where it does not.
std::vector<float> proportional_divisors(const LayerKindFacts& global) {
  constexpr float kNever = 1e30f;
  std::vector<float> divisors(static_cast<size_t>(global.head_dim_k / 2), kNever);
  const int n_rot = global.rope_dims.value_or(global.head_dim_k / 4);
  std::fill_n(divisors.begin(), n_rot / 2, 1.0f);
  return divisors;
}

void synthesize_gemma4(const ModelFacts& m, SynthFile& file) {
  const int64_t width = m.n_embd_per_layer;
  synthesize_keys(m, file);
  if (m.global) file.values("rope_freqs.weight", proportional_divisors(*m.global));
  if (width > 0)
    PerLayerInput::synthesize(file, m.n_embd, width, m.n_layers, m.n_vocab.value_or(0));
  synth_ends(m, file);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    synthesize_attention(m, i, file);
    synthesize_feed_forward(m, i, file);
    if (width > 0) PerLayerInput::synthesize_layer(file, b, m.n_embd, width, kSynthBranch);
    file.norm(b + "layer_output_scale.weight", 1, kSynthOutputScale);
  }
}

}  // namespace

const Family kGemma4 = {"gemma4", Gemma4::open, synthesize_gemma4};

}  // namespace weir

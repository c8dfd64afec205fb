#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "geometry/builtin.h"
#include "ggml.h"
#include "model/families/altup.h"
#include "model/families/family.h"
#include "model/families/layers.h"
#include "model/families/per_layer_input.h"
#include "model/graph.h"
#include "model/rope_keys.h"
#include "model/synth_file.h"
#include "model/synth_keys.h"
#include "model/weight_loader.h"

namespace weir {
namespace {

// Gemma 3n, text: E2B and E4B. Several residual streams (altup.h), a second, low-rank path around
// attention (Laurel), per-layer embeddings (per_layer_input.h), sparse activations in the first
// layers, and last layers that read the KV of earlier ones.
//
// llama.cpp runs the two published sizes only: it takes 20 layers with KV of their own, local
// layers by a period of 5 and sparse activations on the first 10 layers, whatever the file says,
// and estimates the deviation of activations with n - 1. Here the file's keys decide, as in the
// original, which also divides by n.
constexpr size_t kSparseLayers = 10;                 // of files without activation_sparsity_scale
constexpr float kSparseScale = 1.6448533535003662f;  // 95 % of a normal distribution lie below
constexpr float kDense = -std::numeric_limits<float>::infinity();  // as the converter writes it
constexpr int64_t kWidth = 256;      // of per-layer embeddings, in files that do not say
constexpr int64_t kLaurelRank = 64;  // of synthetic models

class Gemma3n : public FamilyModel {
 public:
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w);

  ggml_tensor* build(GraphBuilder& g) const override;
  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }
  int64_t n_vocab() const override { return n_vocab_; }
  int64_t n_embd() const override { return n_embd_; }

 private:
  struct Layer {
    RopeLayer rope;
    int k_dim, v_dim;
    bool owns_kv;
    float sparse_scale;  // what is this many deviations below the mean or more is cut off
    ggml_tensor *attn_norm, *q, *k, *v, *q_norm, *k_norm, *attn_output, *post_attention_norm;
    ggml_tensor *laurel_l, *laurel_r, *laurel_post_norm;
    ggml_tensor *ffn_norm, *post_ffw_norm;
    FfnWeights ffn;
    AltUp::Layer altup;
    PerLayerInput::Layer per_layer;
  };
  Status read_layers(WeightLoader& w);
  void read_attention(WeightLoader& w, const KvLayer& kv, const std::string& b, Layer& layer) const;
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* n) const;
  ggml_tensor* laurel(GraphBuilder& g, const Layer& layer, ggml_tensor* n) const;
  ggml_tensor* feed_forward(GraphBuilder& g, const Layer& layer, ggml_tensor* h) const;

  int64_t n_embd_ = 0, n_vocab_ = 0;
  float eps_ = 0, final_softcap_ = 0;
  ggml_tensor *token_embd_ = nullptr, *output_norm_ = nullptr, *output_ = nullptr;
  AltUp altup_;
  PerLayerInput per_layer_;
  std::vector<Layer> layers_;
  int last_owner_ = 0;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* Gemma3n::attention(GraphBuilder& g, int i, ggml_tensor* n) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  ggml_tensor* q = g.rms_norm(g.heads(g.linear(layer.q, n), layer.k_dim), layer.q_norm, eps_);
  q = g.rope(q, layer.rope);
  if (!layer.owns_kv) return g.attend(i, {}, q, nullptr, nullptr);
  ggml_tensor* k = g.rms_norm(g.heads(g.linear(layer.k, n), layer.k_dim), layer.k_norm, eps_);
  ggml_tensor* v = g.rms_norm(g.heads(g.linear(layer.v, n), layer.v_dim), nullptr, eps_);
  return g.attend(i, {}, q, g.rope(k, layer.rope), v);
}

ggml_tensor* Gemma3n::laurel(GraphBuilder& g, const Layer& layer, ggml_tensor* n) const {
  ggml_tensor* around = g.linear(layer.laurel_r, g.linear(layer.laurel_l, n));
  return g.add(n, g.rms_norm(around, layer.laurel_post_norm, eps_));
}

// max(0, x - (mean + scale * deviation)), both of the token's own numbers.
ggml_tensor* sparse(ggml_context* ctx, ggml_tensor* x, float scale) {
  ggml_tensor* centered = ggml_sub(ctx, x, ggml_mean(ctx, x));
  ggml_tensor* deviation = ggml_sqrt(ctx, ggml_mean(ctx, ggml_sqr(ctx, centered)));
  return ggml_relu(ctx, ggml_sub(ctx, centered, ggml_scale(ctx, deviation, scale)));
}

ggml_tensor* Gemma3n::feed_forward(GraphBuilder& g, const Layer& layer, ggml_tensor* h) const {
  ggml_tensor* f = g.rms_norm(h, layer.ffn_norm, eps_);
  ggml_tensor* gate = g.linear(layer.ffn.gate, f);
  if (std::isfinite(layer.sparse_scale)) gate = sparse(g.context(), gate, layer.sparse_scale);
  f = g.linear(layer.ffn.down, g.gated(Activation::gelu, gate, g.linear(layer.ffn.up, f)));
  return g.rms_norm(f, layer.post_ffw_norm, eps_);
}

ggml_tensor* Gemma3n::build(GraphBuilder& g) const {
  ggml_tensor* x0 = g.scale(g.embed(token_embd_), std::sqrt(static_cast<float>(n_embd_)));
  ggml_tensor* vectors = per_layer_.vectors(g, x0);
  ggml_tensor* streams = altup_.spread(g, x0);
  const int n_layers = static_cast<int>(layers_.size());
  for (int i = 0; i < n_layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    ggml_tensor* predicted = altup_.predict(g, layer.altup, streams);
    ggml_tensor* n = g.rms_norm(altup_.active(g, predicted), layer.attn_norm, eps_);
    ggml_tensor* o = attention(g, i, n);
    // What follows the last layer with KV of its own matters to logits only.
    if (i == last_owner_ && !g.has_outputs()) return o;
    ggml_tensor* vector = per_layer_.of_layer(g, vectors, i);
    if (i + 1 == n_layers) {
      o = g.output_rows(o);
      n = g.output_rows(n);
      predicted = altup_.output_rows(g, predicted);
      vector = g.output_rows(vector);
    }
    o = g.rms_norm(g.linear(layer.attn_output, o), layer.post_attention_norm, eps_);
    ggml_tensor* h = g.add(g.add(altup_.active(g, predicted), o), laurel(g, layer, n));
    h = g.scale(h, 1.0f / std::numbers::sqrt2_v<float>);
    ggml_tensor* z = g.add(h, feed_forward(g, layer, h));

    streams = altup_.correct(g, layer.altup, predicted, z);
    ggml_tensor* first = g.mul(altup_.active(g, streams), layer.altup.correct_scale);
    streams = altup_.add_to_others(g, streams, per_layer_.term(g, layer.per_layer, first, vector));
  }
  ggml_tensor* x = g.rms_norm(altup_.merge(g, streams), output_norm_, eps_);
  ggml_tensor* logits = g.linear(output_, x);
  return final_softcap_ > 0 ? g.softcap(logits, final_softcap_) : logits;
}

// --- keys and tensors ---------------------------------------------------------------------------

void Gemma3n::read_attention(WeightLoader& w, const KvLayer& kv, const std::string& b,
                             Layer& layer) const {
  layer.k_dim = kv.k_dim;
  layer.v_dim = kv.v_dim;
  layer.owns_kv = kv.owns_kv();
  layer.rope = read_rope(w, kv, {.local_theta = 10000.0f});
  layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd_);
  layer.q = w.matrix(b + "attn_q.weight", n_embd_, int64_t{kv.n_heads} * kv.k_dim);
  layer.q_norm = w.vector(b + "attn_q_norm.weight", kv.k_dim);
  layer.k = layer.v = layer.k_norm = nullptr;
  if (layer.owns_kv) {  // files hold unused tensors for the others
    layer.k = w.matrix(b + "attn_k.weight", n_embd_, int64_t{kv.n_kv_heads} * kv.k_dim);
    layer.v = w.matrix(b + "attn_v.weight", n_embd_, int64_t{kv.n_kv_heads} * kv.v_dim);
    layer.k_norm = w.vector(b + "attn_k_norm.weight", kv.k_dim);
  }
  layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd_);
  layer.post_attention_norm = w.vector(b + "post_attention_norm.weight", n_embd_);
}

Status Gemma3n::read_layers(WeightLoader& w) {
  const std::vector<KvLayer>& geometry = w.geometry().layers;
  const std::vector<int64_t> n_ff = w.per_layer("feed_forward_length");
  std::vector<float> scales(geometry.size(), kDense);
  std::fill_n(scales.begin(), std::min(kSparseLayers, scales.size()), kSparseScale);
  if (w.has_key("activation_sparsity_scale"))
    scales = w.numbers_per_layer("activation_sparsity_scale", kDense);
  if (!w.status().ok()) return w.status();

  for (const KvLayer& kv : geometry) {
    const auto i = static_cast<size_t>(kv.index);
    const std::string b = block_prefix(kv.index);
    Layer layer;
    read_attention(w, kv, b, layer);
    if (layer.owns_kv) last_owner_ = kv.index;
    layer.sparse_scale = scales[i];
    const int64_t rank = w.row_count(b + "laurel_l.weight");
    layer.laurel_l = w.matrix(b + "laurel_l.weight", n_embd_, rank);
    layer.laurel_r = w.matrix(b + "laurel_r.weight", rank, n_embd_);
    layer.laurel_post_norm = w.vector(b + "laurel_post_norm.weight", n_embd_);
    layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd_);
    layer.ffn = FfnWeights::read(w, kv.index, n_embd_, n_ff[i]);
    layer.post_ffw_norm = w.vector(b + "post_ffw_norm.weight", n_embd_);
    layer.altup = altup_.read_layer(w, b);
    layer.per_layer = per_layer_.read_layer(w, b);
    if (!w.status().ok()) break;
    layers_.push_back(layer);
  }
  return w.status();
}

Result<std::unique_ptr<FamilyModel>> Gemma3n::open(WeightLoader& w) {
  auto model = std::make_unique<Gemma3n>();
  model->n_embd_ = w.integer("embedding_length");
  model->eps_ = w.number("attention.layer_norm_rms_epsilon");
  // All published models have this cap; llama.cpp does not read the key.
  model->final_softcap_ = w.number("final_logit_softcapping", 30.0f);
  model->n_vocab_ = w.row_count("token_embd.weight");
  if (!(model->final_softcap_ >= 0) || model->eps_ < 0)
    w.fail(Code::corrupt, "a softcap or epsilon of gemma3n is negative");

  model->token_embd_ = w.table("token_embd.weight", model->n_embd_, model->n_vocab_);
  model->output_norm_ = w.vector("output_norm.weight", model->n_embd_);
  model->output_ = w.matrix(w.has("output.weight") ? "output.weight" : "token_embd.weight",
                            model->n_embd_, model->n_vocab_);
  const int64_t width = w.integer("embedding_length_per_layer_input", kWidth);
  model->altup_.read(w, model->n_embd_, model->eps_);
  model->per_layer_.read(w, model->n_embd_, width, model->n_vocab_, model->eps_);
  if (Status status = model->read_layers(w); !status.ok()) return status;
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

void synthesize_keys(const ModelFacts& m, SynthFile& file) {
  const std::string a = "gemma3n.";
  const auto n_layers = static_cast<size_t>(m.n_layers);
  uint32_t n_reusing = 0;
  std::vector<float> scales(n_layers, kDense);
  std::fill_n(scales.begin(), std::min(n_layers, kSparseLayers), kSparseScale);
  for (size_t i = 0; i < n_layers; ++i) n_reusing += m.kv_source[i] != static_cast<int>(i);
  synth_common_keys(m, file, {.pattern = true});
  file.key(a + "attention.shared_kv_layers", n_reusing);
  file.key(a + "final_logit_softcapping", static_cast<float>(m.final_softcap));
  file.key(a + "embedding_length_per_layer_input", static_cast<uint32_t>(m.n_embd_per_layer));
  file.array(a + "activation_sparsity_scale", scales);
}

// What a layer adds is small beside what it adds to, as in trained models: otherwise random layers
// amplify rounding without bounds.
constexpr float kSynthBranch = 0.3f;

void synthesize_gemma3n(const ModelFacts& m, SynthFile& file) {
  const int64_t width = m.n_embd_per_layer;
  synthesize_keys(m, file);
  AltUp::synthesize(file, "gemma3n", m.n_embd);
  PerLayerInput::synthesize(file, m.n_embd, width, m.n_layers, m.n_vocab.value_or(0));
  synth_ends(m, file);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    const LayerKindFacts& kind = kind_of(m, i);
    file.norm(b + "attn_norm.weight", m.n_embd);
    synth_attention(m, kind, b, file);  // with K and V in layers that share, too, as in real files
    // Scores have no factor but these.
    const float sharpness =
        kSynthSharpness / std::sqrt(std::sqrt(static_cast<float>(kind.head_dim_k)));
    file.norm(b + "attn_q_norm.weight", kind.head_dim_k, sharpness);
    file.norm(b + "attn_k_norm.weight", kind.head_dim_k, sharpness);
    file.norm(b + "post_attention_norm.weight", m.n_embd, kSynthBranch);
    file.matrix(b + "laurel_l.weight", m.n_embd, kLaurelRank);
    file.matrix(b + "laurel_r.weight", kLaurelRank, m.n_embd);
    file.norm(b + "laurel_post_norm.weight", m.n_embd, kSynthBranch);
    file.norm(b + "ffn_norm.weight", m.n_embd);
    synth_ffn(m, b, file);
    file.norm(b + "post_ffw_norm.weight", m.n_embd, kSynthBranch);
    AltUp::synthesize_layer(file, b, m.n_embd);
    PerLayerInput::synthesize_layer(file, b, m.n_embd, width, kSynthBranch);
  }
}

}  // namespace

const Family kGemma3n = {"gemma3n", Gemma3n::open, synthesize_gemma3n};

}  // namespace weir

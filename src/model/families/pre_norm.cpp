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

// Llama (with Mistral 7B, Ministral 8B), Mistral 3 (Ministral 3), Qwen 3 and Phi 3: the plain
// decoder with an RMS norm before attention and before a SiLU-gated feed-forward.
//
// Windows: Mistral 7B v0.1 and Phi 3 look back a window in every layer, Ministral 8B in three of
// four. weir does so where the file has the key; llama.cpp runs all three without a window.
class PreNorm : public Transformer {
 public:
  // How they differ.
  struct Version {
    bool neox;
    bool has_qk_norms = false;      // per head
    bool has_fused_ffn = false;     // gate and up in ffn_up
    bool has_query_factor = false;  // grows with the position
  };
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w, const Version& version);
  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    QkvWeights qkv;
    FfnWeights ffn;
    ggml_tensor *attn_norm, *q_norm, *k_norm, *attn_output, *attn_output_bias, *ffn_norm;
  };
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const override;
  ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const override;
  ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const override;
  void read_layer(WeightLoader& w, const KvLayer& kv, int64_t n_ff, const Version& version);
  void read_query_factor(WeightLoader& w);

  float eps_ = 0;
  // Queries at position p are multiplied by 1 + growth * ln(1 + floor(p / period)).
  float query_growth_ = 0;
  int64_t query_period_ = 0;
  std::vector<Layer> layers_;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* PreNorm::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  auto [q, k, v] = layer.qkv.project_heads(g, g.rms_norm(x, layer.attn_norm, eps_));
  if (layer.q_norm) {
    q = g.rms_norm(q, layer.q_norm, eps_);
    k = g.rms_norm(k, layer.k_norm, eps_);
  }
  q = g.rope(q, layer.rope);
  k = g.rope(k, layer.rope);
  if (query_growth_ != 0) {
    q = g.mul(q, g.of_position([growth = query_growth_, period = query_period_](int64_t p) {
      return 1 + growth * std::log1p(static_cast<float>(p / period));
    }));
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(layer.qkv.k_dim));
  return g.attend(i, {.scale = scale}, q, k, v);
}

ggml_tensor* PreNorm::rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  x = g.add(g.linear(layer.attn_output, attended, layer.attn_output_bias), x);
  return g.add(layer.ffn.apply(g, Activation::silu, g.rms_norm(x, layer.ffn_norm, eps_)), x);
}

ggml_tensor* PreNorm::logits(GraphBuilder& g, ggml_tensor* x) const {
  return g.linear(output_, g.rms_norm(x, output_norm_, eps_));
}

// --- keys and tensors ---------------------------------------------------------------------------

void PreNorm::read_layer(WeightLoader& w, const KvLayer& kv, int64_t n_ff, const Version& version) {
  const std::string b = block_prefix(kv.index);
  Layer layer{};
  layer.rope = read_rope(w, kv, {.neox = version.neox, .divided = RopeRule::On::all});
  layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd_);
  layer.qkv = QkvWeights::read(w, kv, n_embd_);
  if (version.has_qk_norms) {
    layer.q_norm = w.vector(b + "attn_q_norm.weight", kv.k_dim);
    layer.k_norm = w.vector(b + "attn_k_norm.weight", kv.k_dim);
  }
  layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd_);
  layer.attn_output_bias = w.vector_if_present(b + "attn_output.bias", n_embd_);
  layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd_);
  layer.ffn = version.has_fused_ffn ? FfnWeights::read_fused(w, kv.index, n_embd_, n_ff)
                                    : FfnWeights::read(w, kv.index, n_embd_, n_ff);
  layers_.push_back(layer);
}

void PreNorm::read_query_factor(WeightLoader& w) {
  query_growth_ = w.number("attention.temperature_scale", 0.0f);
  const char* key = "rope.scaling.original_context_length";
  query_period_ = w.integer(key, w.integer("context_length", 0));
  if (query_growth_ != 0 && query_period_ < 1)
    w.fail(Code::corrupt, "key " + w.full_key(key) + " is " + std::to_string(query_period_) +
                              "; attention.temperature_scale needs it");
}

Result<std::unique_ptr<FamilyModel>> PreNorm::open(WeightLoader& w, const Version& version) {
  auto model = std::make_unique<PreNorm>();
  if (w.integer("expert_count", 0) != 0)
    w.fail(Code::unsupported, "key " + w.full_key("expert_count") +
                                  " is not 0: weir does not run experts in this architecture");
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  model->eps_ = w.positive("attention.layer_norm_rms_epsilon");
  if (version.has_query_factor) model->read_query_factor(w);
  const int64_t n_ff = w.integer("feed_forward_length");
  for (const KvLayer& kv : w.geometry().layers) model->read_layer(w, kv, n_ff, version);
  if (!w.status().ok()) return w.status();
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

constexpr float kMinistral3QueryGrowth = 0.1f;

void synth_fused(const ModelFacts& m, const LayerKindFacts& kind, const std::string& b,
                 SynthFile& file) {
  const int64_t k_width = int64_t{kind.n_head_kv} * kind.head_dim_k;
  const int64_t v_width = int64_t{kind.n_head_kv} * kind.head_dim_v;
  const int64_t n_ff = m.n_ff.value_or(0);
  file.matrix(b + "attn_qkv.weight", m.n_embd,
              int64_t{kind.n_head} * kind.head_dim_k + k_width + v_width);
  file.matrix(b + "attn_output.weight", int64_t{kind.n_head} * kind.head_dim_v, m.n_embd);
  file.matrix(b + "ffn_up.weight", m.n_embd, 2 * n_ff);
  file.matrix(b + "ffn_down.weight", n_ff, m.n_embd);
}

void synthesize_pre_norm(const ModelFacts& m, SynthFile& file) {
  const bool is_fused = m.gguf_arch == "phi3";
  // A pattern says which layers the window is for; without one it is for all.
  synth_common_keys(m, file, {.eps = 1e-5f, .pattern = m.global && m.local});
  if (m.gguf_arch == "mistral3") {
    file.key("mistral3.attention.temperature_scale", kMinistral3QueryGrowth);
    file.key("mistral3.rope.scaling.yarn_log_multiplier", 1.0f);
  }
  synth_ends(m, file);
  synth_rope_tensors(m, file);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = block_prefix(i);
    const LayerKindFacts& kind = kind_of(m, i);
    file.norm(b + "attn_norm.weight", m.n_embd);
    file.norm(b + "ffn_norm.weight", m.n_embd);
    if (is_fused) {
      synth_fused(m, kind, b, file);
      continue;
    }
    synth_attention(m, kind, b, file);
    synth_ffn(m, b, file);
    if (m.gguf_arch == "qwen3") {
      file.norm(b + "attn_q_norm.weight", kind.head_dim_k, kSynthSharpness);
      file.norm(b + "attn_k_norm.weight", kind.head_dim_k, kSynthSharpness);
    }
  }
}

}  // namespace

const Family kLlama = {"llama", [](WeightLoader& w) { return PreNorm::open(w, {.neox = false}); },
                       synthesize_pre_norm};
const Family kMistral3 = {
    "mistral3",
    [](WeightLoader& w) { return PreNorm::open(w, {.neox = false, .has_query_factor = true}); },
    synthesize_pre_norm};
const Family kQwen3 = {
    "qwen3", [](WeightLoader& w) { return PreNorm::open(w, {.neox = true, .has_qk_norms = true}); },
    synthesize_pre_norm};
const Family kPhi3 = {
    "phi3", [](WeightLoader& w) { return PreNorm::open(w, {.neox = true, .has_fused_ffn = true}); },
    synthesize_pre_norm};

}  // namespace weir

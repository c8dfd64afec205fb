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

// Step 3.5. Local layers have more query heads than global ones and rotate whole heads; global ones
// rotate half a head, with Llama 3's divisors. Each head of attention passes a gate; experts beside
// a shared one, with limits on their activations in some layers. The file's draft layers are not
// read.
class Step35 : public Transformer {
 public:
  static Result<std::unique_ptr<FamilyModel>> open(WeightLoader& w);

  RopeLayer rope_of(int layer) const override { return layers_[static_cast<size_t>(layer)].rope; }

 private:
  struct Layer {
    RopeLayer rope;
    QkvWeights qkv;
    ggml_tensor *attn_norm, *q_norm, *k_norm, *gate, *attn_output, *ffn_norm;
    FeedForward ffn;
  };
  static RopeLayer read_rope_of(WeightLoader& w, const KvLayer& kv);
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const override;
  ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const override;
  ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const override {
    return g.linear(output_, g.rms_norm(x, output_norm_, eps_));
  }

  float eps_ = 0;
  std::vector<Layer> layers_;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* Step35::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  ggml_tensor* a = g.rms_norm(x, layer.attn_norm, eps_);
  auto [q, k, v] = layer.qkv.project_heads(g, a);
  q = g.rope(g.rms_norm(q, layer.q_norm, eps_), layer.rope);
  k = g.rope(g.rms_norm(k, layer.k_norm, eps_), layer.rope);
  ggml_tensor* o =
      g.attend(i, {.scale = 1.0f / std::sqrt(static_cast<float>(layer.qkv.k_dim))}, q, k, v);
  return gate_heads(g, o, ggml_sigmoid(g.context(), g.linear(layer.gate, a)), layer.qkv.v_dim);
}

ggml_tensor* Step35::rest(GraphBuilder& g, int i, ggml_tensor* x, ggml_tensor* attended) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  x = g.add(g.linear(layer.attn_output, attended), x);
  return g.add(layer.ffn.apply(g, g.rms_norm(x, layer.ffn_norm, eps_)), x);
}

// --- keys and tensors ---------------------------------------------------------------------------

// The file's dimension count is that of local layers.
RopeLayer Step35::read_rope_of(WeightLoader& w, const KvLayer& kv) {
  RopeLayer rope = read_rope(w, kv, {.divided = RopeRule::On::global, .local_theta = 10000.0f});
  if (kv.retention.kind != LayerKind::global) return rope;
  rope.n_rot /= 2;
  if (rope.n_rot % 2 != 0)
    w.fail(Code::corrupt, "key " + w.full_key("rope.dimension_count") + " is " +
                              std::to_string(2 * rope.n_rot) +
                              "; global layers rotate half of it, in pairs");
  return rope;
}

Result<std::unique_ptr<FamilyModel>> Step35::open(WeightLoader& w) {
  auto model = std::make_unique<Step35>();
  if (!layers_own_kv(w)) return w.status();
  model->read_ends(w);
  const int64_t n_embd = model->n_embd_;
  model->eps_ = w.positive("attention.layer_norm_rms_epsilon");
  const Router router = read_router(w, Gating::sigmoid);
  const int64_t n_ff = read_width(w, "feed_forward_length");
  const int64_t n_ff_exp = read_width(w, "expert_feed_forward_length");
  const int64_t n_ff_shared = read_width(w, "expert_shared_feed_forward_length", n_ff_exp);
  // Limits of 0 are none.
  const std::vector<float> expert_limits = w.numbers_per_layer("swiglu_clamp_exp", 0.0f);
  const std::vector<float> dense_limits = w.numbers_per_layer("swiglu_clamp_shexp", 0.0f);
  for (const KvLayer& kv : w.geometry().layers) {
    const auto i = static_cast<size_t>(kv.index);
    const std::string b = block_prefix(kv.index);
    Layer layer;
    layer.rope = read_rope_of(w, kv);
    layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd);
    layer.qkv = QkvWeights::read(w, kv, n_embd);
    layer.q_norm = w.vector(b + "attn_q_norm.weight", kv.k_dim);
    layer.k_norm = w.vector(b + "attn_k_norm.weight", kv.k_dim);
    layer.gate = w.matrix(b + "attn_gate.weight", n_embd, kv.n_heads);
    layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd);
    layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd);
    if (w.has(b + "ffn_gate.weight")) {
      layer.ffn = FeedForward::read_dense(w, kv.index, n_embd, n_ff);
    } else {
      layer.ffn = FeedForward::read_experts(w, kv.index, n_embd, n_ff_exp, router);
      layer.ffn.router.choice_bias = w.vector_if_present(b + "exp_probs_b.bias", router.n_expert);
      layer.ffn.experts.limit = expert_limits[i];
      layer.ffn.dense = read_shared_expert(w, kv.index, n_embd, n_ff_shared);
    }
    layer.ffn.dense_limit = dense_limits[i];
    if (!w.status().ok()) return w.status();
    model->layers_.push_back(layer);
  }
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

// Limits as in Step-3.5-Flash: on the experts of the last two layers, on the shared one of the
// last.
constexpr float kExpertLimit = 7.0f, kSharedLimit = 16.0f;
// With this gain, random experts meet them.
constexpr float kLimitedGain = 6.0f;

bool is_limited(const ModelFacts& m, int layer) {
  return layer < m.n_layers && layer >= m.n_layers - 2;
}

void synthesize_step35_keys(const ModelFacts& m, SynthFile& file) {
  const std::string a = m.gguf_arch + ".";
  synth_common_keys(m, file, {.eps = 1e-5f});
  synth_expert_keys(m, file);
  synth_draft_keys(m, file);
  std::vector<bool> is_local;
  std::vector<float> expert_limits, shared_limits;
  for (int i = 0; i < m.n_layers + m.n_mtp_layers; ++i) {
    is_local.push_back(i >= m.n_layers || !m.is_global(i));
    expert_limits.push_back(is_limited(m, i) ? kExpertLimit : 0.0f);
    shared_limits.push_back(i + 1 == m.n_layers ? kSharedLimit : 0.0f);
  }
  file.flags(a + "attention.sliding_window_pattern", is_local);
  file.array(a + "swiglu_clamp_exp", expert_limits);
  file.array(a + "swiglu_clamp_shexp", shared_limits);
  file.key(a + "expert_shared_feed_forward_length", static_cast<uint32_t>(m.n_ff_exp));
  file.key(a + "expert_weights_scale", 3.0f);
  file.flag(a + "expert_weights_norm", true);
  const int n_rot = m.local ? m.local->head_dim_k : m.global->head_dim_k;
  file.key(a + "rope.dimension_count", static_cast<uint32_t>(n_rot));
  synth_rope_tensors(m, file, n_rot / 2);
}

void synthesize_step35(const ModelFacts& m, SynthFile& file) {
  synthesize_step35_keys(m, file);
  synth_ends(m, file);
  for (int i = 0; i < m.n_layers + m.n_mtp_layers; ++i) {
    const std::string b = block_prefix(i);
    const LayerKindFacts& kind = kind_of(m, i);
    const bool is_draft = i >= m.n_layers;
    file.norm(b + "attn_norm.weight", m.n_embd);
    synth_attention(m, kind, b, file);
    file.norm(b + "attn_q_norm.weight", kind.head_dim_k, kSynthSharpness);
    file.norm(b + "attn_k_norm.weight", kind.head_dim_k, kSynthSharpness);
    file.matrix(b + "attn_gate.weight", m.n_embd, kind.n_head);
    file.norm(b + "ffn_norm.weight", m.n_embd);
    if (is_draft) synth_draft_ends(m, b, file);
    if (is_draft || i < m.n_dense_lead) {
      synth_ffn(m, b, file);
      continue;
    }
    const float gain = is_limited(m, i) ? kLimitedGain : 1.0f;
    synthesize_experts(file, b,
                       {.n_embd = m.n_embd,
                        .n_ff = m.n_ff_exp,
                        .n_expert = m.n_expert,
                        .gain = gain,
                        .choice_bias = true});
    synth_shared_expert(b, m.n_embd, m.n_ff_exp, file, gain);
  }
}

}  // namespace

const Family kStep35 = {"step35", Step35::open, synthesize_step35};

}  // namespace weir

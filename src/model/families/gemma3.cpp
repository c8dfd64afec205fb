#include <cmath>
#include <cstdlib>
#include <vector>

#include "geometry/builtin.h"
#include "model/families/family.h"
#include "model/graph.h"
#include "model/rope_keys.h"
#include "model/synth_file.h"
#include "model/weight_loader.h"

namespace weir {
namespace {

// Gemma 3, text: 270M to 27B. Norms before and after attention and feed-forward, q and k normed
// per head, rope of its own for local and global layers.
class Gemma3 : public FamilyModel {
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
    ggml_tensor *attn_norm, *q, *k, *v, *q_norm, *k_norm, *attn_output, *post_attention_norm;
    ggml_tensor *ffn_norm, *ffn_gate, *ffn_up, *ffn_down, *post_ffw_norm;
  };
  Status read_layers(WeightLoader& w);
  ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const;
  ggml_tensor* feed_forward(GraphBuilder& g, const Layer& layer, ggml_tensor* x) const;

  int64_t n_embd_ = 0, n_vocab_ = 0;
  float eps_ = 0, embd_scale_ = 1, attn_scale_ = 1, final_softcap_ = 0;
  ggml_tensor *token_embd_ = nullptr, *output_norm_ = nullptr, *output_ = nullptr;
  std::vector<Layer> layers_;
};

// --- the forward pass ---------------------------------------------------------------------------

ggml_tensor* Gemma3::attention(GraphBuilder& g, int i, ggml_tensor* x) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  ggml_tensor* a = g.rms_norm(x, layer.attn_norm, eps_);
  ggml_tensor* q = g.heads(g.linear(layer.q, a), layer.k_dim);
  ggml_tensor* k = g.heads(g.linear(layer.k, a), layer.k_dim);
  ggml_tensor* v = g.heads(g.linear(layer.v, a), layer.v_dim);
  q = g.rope(g.rms_norm(q, layer.q_norm, eps_), layer.rope);
  k = g.rope(g.rms_norm(k, layer.k_norm, eps_), layer.rope);
  return g.attend(i, {.scale = attn_scale_}, q, k, v);
}

ggml_tensor* Gemma3::feed_forward(GraphBuilder& g, const Layer& layer, ggml_tensor* x) const {
  ggml_tensor* f = g.rms_norm(x, layer.ffn_norm, eps_);
  f = g.gated_ffn(Activation::gelu, layer.ffn_gate, layer.ffn_up, layer.ffn_down, f);
  return g.rms_norm(f, layer.post_ffw_norm, eps_);
}

ggml_tensor* Gemma3::build(GraphBuilder& g) const {
  ggml_tensor* x = g.scale(g.embed(token_embd_), embd_scale_);
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    ggml_tensor* o = attention(g, i, x);
    if (i + 1 == static_cast<int>(layers_.size())) {
      // Every token has stored its K and V by now; only the outputs' rows go on.
      if (!g.has_outputs()) return o;
      o = g.output_rows(o);
      x = g.output_rows(x);
    }
    o = g.linear(layer.attn_output, o);
    x = g.add(g.rms_norm(o, layer.post_attention_norm, eps_), x);
    x = g.add(feed_forward(g, layer, x), x);
  }
  ggml_tensor* logits = g.linear(output_, g.rms_norm(x, output_norm_, eps_));
  return final_softcap_ > 0 ? g.softcap(logits, final_softcap_) : logits;
}

// --- keys and tensors ---------------------------------------------------------------------------

Status Gemma3::read_layers(WeightLoader& w) {
  const int64_t n_ff = w.integer("feed_forward_length");
  // Positions are scaled in global layers only; a model without a window has no others.
  const RopeRule rope{.scaled = RopeRule::On::global, .local_theta = 10000.0f};
  for (const KvLayer& kv : w.geometry().layers) {
    if (!kv.owns_kv()) {
      w.fail(Code::unsupported,
             "key gemma3.attention.shared_kv_layers: layers of this architecture "
             "do not share their keys and values");
      return w.status();
    }
    const std::string b = "blk." + std::to_string(kv.index) + ".";
    Layer layer;
    layer.k_dim = kv.k_dim;
    layer.v_dim = kv.v_dim;
    layer.rope = read_rope(w, kv, rope);

    const int64_t q_width = int64_t{kv.n_heads} * kv.k_dim;
    const int64_t k_width = int64_t{kv.n_kv_heads} * kv.k_dim;
    const int64_t v_width = int64_t{kv.n_kv_heads} * kv.v_dim;
    layer.attn_norm = w.vector(b + "attn_norm.weight", n_embd_);
    layer.q = w.matrix(b + "attn_q.weight", n_embd_, q_width);
    layer.k = w.matrix(b + "attn_k.weight", n_embd_, k_width);
    layer.v = w.matrix(b + "attn_v.weight", n_embd_, v_width);
    layer.q_norm = w.vector(b + "attn_q_norm.weight", kv.k_dim);
    layer.k_norm = w.vector(b + "attn_k_norm.weight", kv.k_dim);
    layer.attn_output = w.matrix(b + "attn_output.weight", int64_t{kv.n_heads} * kv.v_dim, n_embd_);
    layer.post_attention_norm = w.vector(b + "post_attention_norm.weight", n_embd_);
    layer.ffn_norm = w.vector(b + "ffn_norm.weight", n_embd_);
    layer.ffn_gate = w.matrix(b + "ffn_gate.weight", n_embd_, n_ff);
    layer.ffn_up = w.matrix(b + "ffn_up.weight", n_embd_, n_ff);
    layer.ffn_down = w.matrix(b + "ffn_down.weight", n_ff, n_embd_);
    layer.post_ffw_norm = w.vector(b + "post_ffw_norm.weight", n_embd_);
    if (!w.status().ok()) break;
    layers_.push_back(layer);
  }
  return w.status();
}

Result<std::unique_ptr<FamilyModel>> Gemma3::open(WeightLoader& w) {
  auto model = std::make_unique<Gemma3>();
  model->n_embd_ = w.integer("embedding_length");
  model->eps_ = w.number("attention.layer_norm_rms_epsilon");
  model->final_softcap_ = w.number("final_logit_softcapping", 0.0f);
  model->n_vocab_ = w.row_count("token_embd.weight");
  if (!(model->final_softcap_ >= 0))
    w.fail(Code::corrupt, "key gemma3.final_logit_softcapping is negative");
  if (model->eps_ < 0)
    w.fail(Code::corrupt, "key gemma3.attention.layer_norm_rms_epsilon is negative");
  model->embd_scale_ = std::sqrt(static_cast<float>(model->n_embd_));

  model->token_embd_ = w.table("token_embd.weight", model->n_embd_, model->n_vocab_);
  model->output_norm_ = w.vector("output_norm.weight", model->n_embd_);
  model->output_ = w.matrix(w.has("output.weight") ? "output.weight" : "token_embd.weight",
                            model->n_embd_, model->n_vocab_);
  if (Status status = model->read_layers(w); !status.ok()) return status;

  // Only the 27B, the one with 62 layers, scales scores by the width of a head's share of the
  // residual stream (168) instead of the head's own width (128).
  const std::vector<KvLayer>& layers = w.geometry().layers;
  const int64_t scale_width =
      layers.size() == 62 ? model->n_embd_ / layers[0].n_heads : layers[0].k_dim;
  model->attn_scale_ = 1.0f / std::sqrt(static_cast<float>(scale_width));
  return std::unique_ptr<FamilyModel>(std::move(model));
}

// --- synthetic models ---------------------------------------------------------------------------

// The factor of "linear factor=8", 1 without scaling.
float linear_factor(const std::string& scaling) {
  const size_t at = scaling.find("factor=");
  return at == std::string::npos ? 1.0f : std::strtof(scaling.c_str() + at + 7, nullptr);
}

void synthesize_gemma3(const ModelFacts& m, SynthFile& file) {
  const std::string a = "gemma3.";
  const LayerKindFacts& kind = m.global ? *m.global : *m.local;  // both have the same heads
  const int64_t n_ff = m.n_ff.value_or(0), n_vocab = m.n_vocab.value_or(0);
  const int64_t q_width = int64_t{kind.n_head} * kind.head_dim_k;
  const int64_t kv_width = int64_t{kind.n_head_kv} * kind.head_dim_k;
  file.key(a + "context_length", static_cast<uint32_t>(m.max_context));
  file.key(a + "embedding_length", static_cast<uint32_t>(m.n_embd));
  file.key(a + "block_count", static_cast<uint32_t>(m.n_layers));
  file.key(a + "feed_forward_length", static_cast<uint32_t>(n_ff));
  file.key(a + "attention.head_count", static_cast<uint32_t>(kind.n_head));
  file.key(a + "attention.head_count_kv", static_cast<uint32_t>(kind.n_head_kv));
  file.key(a + "attention.key_length", static_cast<uint32_t>(kind.head_dim_k));
  file.key(a + "attention.value_length", static_cast<uint32_t>(kind.head_dim_v));
  file.key(a + "attention.layer_norm_rms_epsilon", 1e-6f);
  file.key(a + "rope.freq_base", static_cast<float>(kind.rope_theta.value_or(1e6)));
  if (m.window && m.local) {
    file.key(a + "attention.sliding_window", static_cast<uint32_t>(*m.window));
    file.key(a + "rope.freq_base_swa", static_cast<float>(m.local->rope_theta.value_or(1e4)));
  }
  if (const float factor = linear_factor(m.rope_scaling); factor != 1.0f) {
    file.key(a + "rope.scaling.type", std::string("linear"));
    file.key(a + "rope.scaling.factor", factor);
  }

  file.matrix("token_embd.weight", m.n_embd, n_vocab);
  for (int i = 0; i < m.n_layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    file.norm(b + "attn_norm.weight", m.n_embd);
    file.matrix(b + "attn_q.weight", m.n_embd, q_width);
    file.matrix(b + "attn_k.weight", m.n_embd, kv_width);
    file.matrix(b + "attn_v.weight", m.n_embd, kv_width);
    // Factors of 1.5 give scores a deviation of 2.25: a query then looks at a few keys of its
    // window, as in a trained model, and a key too many or too few shows in the logits.
    file.norm(b + "attn_q_norm.weight", kind.head_dim_k, 1.5f);
    file.norm(b + "attn_k_norm.weight", kind.head_dim_k, 1.5f);
    file.matrix(b + "attn_output.weight", q_width, m.n_embd);
    file.norm(b + "post_attention_norm.weight", m.n_embd);
    file.norm(b + "ffn_norm.weight", m.n_embd);
    file.matrix(b + "ffn_gate.weight", m.n_embd, n_ff);
    file.matrix(b + "ffn_up.weight", m.n_embd, n_ff);
    file.matrix(b + "ffn_down.weight", n_ff, m.n_embd);
    file.norm(b + "post_ffw_norm.weight", m.n_embd);
  }
  file.norm("output_norm.weight", m.n_embd);
  if (!m.tied_embeddings.value_or(true)) file.matrix("output.weight", m.n_embd, n_vocab);
}

}  // namespace

const Family kGemma3 = {"gemma3", Gemma3::open, synthesize_gemma3};

}  // namespace weir

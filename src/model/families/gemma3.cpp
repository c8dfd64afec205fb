#include "model/families/family.h"
#include "model/synth.h"
#include "model/synth_file.h"

namespace weir {
namespace {

void synthesize_gemma3(const SynthShape& s, SynthFile& file) {
  const std::string a = "gemma3.";
  const int64_t q_width = int64_t{s.n_heads} * s.head_dim;
  const int64_t kv_width = int64_t{s.n_kv_heads} * s.head_dim;
  file.key(a + "context_length", static_cast<uint32_t>(s.max_context));
  file.key(a + "embedding_length", static_cast<uint32_t>(s.n_embd));
  file.key(a + "block_count", static_cast<uint32_t>(s.n_layers));
  file.key(a + "feed_forward_length", static_cast<uint32_t>(s.n_ff));
  file.key(a + "attention.head_count", static_cast<uint32_t>(s.n_heads));
  file.key(a + "attention.head_count_kv", static_cast<uint32_t>(s.n_kv_heads));
  file.key(a + "attention.key_length", static_cast<uint32_t>(s.head_dim));
  file.key(a + "attention.value_length", static_cast<uint32_t>(s.head_dim));
  file.key(a + "attention.layer_norm_rms_epsilon", 1e-6f);
  file.key(a + "rope.freq_base", s.rope_theta);
  if (s.window > 0) {
    file.key(a + "attention.sliding_window", static_cast<uint32_t>(s.window));
    file.key(a + "rope.freq_base_swa", s.rope_theta_local);
  }
  if (s.rope_factor != 1.0f) {
    file.key(a + "rope.scaling.type", std::string("linear"));
    file.key(a + "rope.scaling.factor", s.rope_factor);
  }

  file.matrix("token_embd.weight", s.n_embd, s.n_vocab);
  for (int i = 0; i < s.n_layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    file.norm(b + "attn_norm.weight", s.n_embd);
    file.matrix(b + "attn_q.weight", s.n_embd, q_width);
    file.matrix(b + "attn_k.weight", s.n_embd, kv_width);
    file.matrix(b + "attn_v.weight", s.n_embd, kv_width);
    // Factors of 1.5 give scores a deviation of 2.25: a query then looks at a few keys of its
    // window, as in a trained model, and a key too many or too few shows in the logits.
    file.norm(b + "attn_q_norm.weight", s.head_dim, 1.5f);
    file.norm(b + "attn_k_norm.weight", s.head_dim, 1.5f);
    file.matrix(b + "attn_output.weight", q_width, s.n_embd);
    file.norm(b + "post_attention_norm.weight", s.n_embd);
    file.norm(b + "ffn_norm.weight", s.n_embd);
    file.matrix(b + "ffn_gate.weight", s.n_embd, s.n_ff);
    file.matrix(b + "ffn_up.weight", s.n_embd, s.n_ff);
    file.matrix(b + "ffn_down.weight", s.n_ff, s.n_embd);
    file.norm(b + "post_ffw_norm.weight", s.n_embd);
  }
  file.norm("output_norm.weight", s.n_embd);
  if (!s.tied_embeddings) file.matrix("output.weight", s.n_embd, s.n_vocab);
}

}  // namespace

const Family kGemma3 = {"gemma3", nullptr, synthesize_gemma3};

}  // namespace weir

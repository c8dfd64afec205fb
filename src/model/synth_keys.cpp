#include "model/synth_keys.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>

#include "model/synth_file.h"

namespace weir {
namespace {

// The number behind `name` in "... name=8 ...".
double number_in(const std::string& text, const std::string& name, double otherwise) {
  const size_t at = text.find(name + "=");
  return at == std::string::npos ? otherwise
                                 : std::strtod(text.c_str() + at + name.size() + 1, nullptr);
}

uint32_t u32(int64_t value) { return static_cast<uint32_t>(value); }

// One value for all layers, or an array where local layers have another.
void per_kind(const ModelFacts& m, SynthFile& file, const std::string& key,
              int LayerKindFacts::*field) {
  if (!m.global || !m.local || (*m.global).*field == (*m.local).*field) {
    file.key(key, u32(kind_of(m, 0).*field));
    return;
  }
  std::vector<uint32_t> values;
  for (int i = 0; i < m.n_layers; ++i) values.push_back(u32(kind_of(m, i).*field));
  file.array(key, values);
}

// A key of all layers, and one for local layers if they differ.
template <typename T>
void with_local(SynthFile& file, const std::string& key, T value, T local) {
  file.key(key, value);
  if (local != value) file.key(key + "_swa", local);
}

void synth_rope_keys(const ModelFacts& m, SynthFile& file, const std::string& a) {
  const LayerKindFacts& global = m.global ? *m.global : *m.local;
  const LayerKindFacts& local = m.local ? *m.local : *m.global;
  // What a kind does not say is as in the other kind: layers without positions read no key.
  const auto theta = [](const LayerKindFacts& of, const LayerKindFacts& other) {
    return static_cast<float>(of.rope_theta.value_or(other.rope_theta.value_or(1e6)));
  };
  const auto dims = [](const LayerKindFacts& of, const LayerKindFacts& other) {
    const int own = of.rope_dims.value_or(of.head_dim_k);
    // Never more than the head has: tests make heads small.
    return u32(std::min(own > 0 ? own : other.rope_dims.value_or(of.head_dim_k), of.head_dim_k));
  };
  with_local(file, a + "rope.freq_base", theta(global, local), theta(local, global));
  with_local(file, a + "rope.dimension_count", dims(global, local), dims(local, global));

  const SynthRopeScaling scaling = parse_rope_scaling(m.rope_scaling);
  if (scaling.original_context > 0)
    file.key(a + "rope.scaling.original_context_length", u32(scaling.original_context));
  if (scaling.type == "linear" || scaling.type == "yarn") {
    file.key(a + "rope.scaling.type", scaling.type);
    file.key(a + "rope.scaling.factor", scaling.factor);
  }
  if (scaling.type == "yarn") {
    file.key(a + "rope.scaling.yarn_beta_fast", scaling.beta_fast);
    file.key(a + "rope.scaling.yarn_beta_slow", scaling.beta_slow);
  }
  if (scaling.type == "longrope") {
    const double original = static_cast<double>(scaling.original_context);
    file.key(a + "rope.scaling.attn_factor",
             static_cast<float>(std::sqrt(1 + std::log(scaling.factor) / std::log(original))));
  }
}

}  // namespace

SynthRopeScaling parse_rope_scaling(const std::string& text) {
  SynthRopeScaling scaling;
  if (text.empty()) return scaling;
  scaling.type = text.substr(0, text.find(' '));
  scaling.factor = static_cast<float>(number_in(text, "factor", 1));
  scaling.original_context = static_cast<int64_t>(number_in(text, "orig", 0));
  scaling.beta_fast = static_cast<float>(number_in(text, "beta_fast", 32));
  scaling.beta_slow = static_cast<float>(number_in(text, "beta_slow", 1));
  scaling.low_freq_factor = static_cast<float>(number_in(text, "low", 1));
  scaling.high_freq_factor = static_cast<float>(number_in(text, "high", 4));
  return scaling;
}

const LayerKindFacts& kind_of(const ModelFacts& m, int layer) {
  if (!m.global) return *m.local;
  return m.is_global(layer) || !m.local ? *m.global : *m.local;
}

void synth_common_keys(const ModelFacts& m, SynthFile& file, const SynthKeys& keys) {
  const std::string a = m.gguf_arch + ".";
  const LayerKindFacts& global = m.global ? *m.global : *m.local;
  const LayerKindFacts& local = m.local ? *m.local : *m.global;
  file.key(a + "context_length", u32(m.max_context));
  file.key(a + "embedding_length", u32(m.n_embd));
  file.key(a + "block_count", u32(m.n_layers));
  file.key(a + "feed_forward_length", u32(m.n_ff.value_or(0)));
  per_kind(m, file, a + "attention.head_count", &LayerKindFacts::n_head);
  per_kind(m, file, a + "attention.head_count_kv", &LayerKindFacts::n_head_kv);
  with_local(file, a + "attention.key_length", u32(global.head_dim_k), u32(local.head_dim_k));
  with_local(file, a + "attention.value_length", u32(global.head_dim_v), u32(local.head_dim_v));
  file.key(a + keys.eps_key, keys.eps);
  if (m.window && m.local) {
    file.key(a + "attention.sliding_window", u32(*m.window));
    if (keys.pattern) {
      std::vector<bool> is_local;
      for (int i = 0; i < m.n_layers; ++i) is_local.push_back(!m.is_global(i));
      file.flags(a + "attention.sliding_window_pattern", is_local);
    }
  }
  synth_rope_keys(m, file, a);
}

void synth_rope_tensors(const ModelFacts& m, SynthFile& file, int n_pairs_total) {
  const SynthRopeScaling scaling = parse_rope_scaling(m.rope_scaling);
  // The kind that rotates.
  const LayerKindFacts& kind = m.global && m.global->rope_dims != 0 ? *m.global
                               : m.local                            ? *m.local
                                                                    : *m.global;
  const int n_pairs = std::min(kind.rope_dims.value_or(kind.head_dim_k), kind.head_dim_k) / 2;
  std::vector<float> divisors, ones(static_cast<size_t>(n_pairs), 1.0f);
  if (scaling.type == "llama3") {
    // Wavelengths beyond the original context / low are stretched by the factor, those within
    // original context / high are kept, the ones between are mixed by their frequency.
    const double original = static_cast<double>(scaling.original_context);
    for (int p = 0; p < n_pairs; ++p) {
      const double wavelength =
          2 * std::numbers::pi * std::pow(kind.rope_theta.value_or(1e4), 2.0 * p / (2 * n_pairs));
      const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
      const double kept = std::clamp((original / wavelength - low) / (high - low), 0.0, 1.0);
      divisors.push_back(static_cast<float>(1 / ((1 - kept) / scaling.factor + kept)));
    }
    divisors.resize(static_cast<size_t>(std::max(n_pairs, n_pairs_total)), 1.0f);
    file.values("rope_freqs.weight", divisors);
  } else if (scaling.type == "longrope") {
    // Published long factors rise from 1 to several times the scaling; short ones stay near 1.
    for (int p = 0; p < n_pairs; ++p)
      divisors.push_back(1 + (scaling.factor - 1) * static_cast<float>(p) /
                                 static_cast<float>(n_pairs));
    file.values("rope_factors_long.weight", divisors);
    for (size_t p = 0; p < ones.size(); ++p) ones[p] += 0.05f * static_cast<float>(p % 4);
    file.values("rope_factors_short.weight", ones);
  }
}

void synth_ends(const ModelFacts& m, SynthFile& file) {
  const int64_t n_vocab = m.n_vocab.value_or(0);
  file.matrix("token_embd.weight", m.n_embd, n_vocab);
  file.norm("output_norm.weight", m.n_embd);
  if (!m.tied_embeddings.value_or(true)) file.matrix("output.weight", m.n_embd, n_vocab);
}

void synth_attention(const ModelFacts& m, const LayerKindFacts& kind, const std::string& b,
                     SynthFile& file, float gain) {
  file.matrix(b + "attn_q.weight", m.n_embd, int64_t{kind.n_head} * kind.head_dim_k, gain);
  file.matrix(b + "attn_k.weight", m.n_embd, int64_t{kind.n_head_kv} * kind.head_dim_k, gain);
  file.matrix(b + "attn_v.weight", m.n_embd, int64_t{kind.n_head_kv} * kind.head_dim_v);
  file.matrix(b + "attn_output.weight", int64_t{kind.n_head} * kind.head_dim_v, m.n_embd);
}

void synth_ffn(const ModelFacts& m, const std::string& b, SynthFile& file) {
  const int64_t n_ff = m.n_ff.value_or(0);
  file.matrix(b + "ffn_gate.weight", m.n_embd, n_ff);
  file.matrix(b + "ffn_up.weight", m.n_embd, n_ff);
  file.matrix(b + "ffn_down.weight", n_ff, m.n_embd);
}

}  // namespace weir

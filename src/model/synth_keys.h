#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "geometry/builtin.h"

namespace weir {

class SynthFile;

// A model's rope_scaling, "yarn factor=8 orig=8192 beta_fast=32 beta_slow=1", taken apart.
struct SynthRopeScaling {
  std::string type = "none";  // linear, yarn, llama3, longrope
  float factor = 1.0f;
  int64_t original_context = 0;
  float beta_fast = 32.0f, beta_slow = 1.0f;              // yarn
  float low_freq_factor = 1.0f, high_freq_factor = 4.0f;  // llama3
};
SynthRopeScaling parse_rope_scaling(const std::string& text);

// What a family's synthetic files have besides the common keys.
struct SynthKeys {
  const char* eps_key = "attention.layer_norm_rms_epsilon";
  float eps = 1e-6f;
  // Name each layer's kind, as the family's converter does. Otherwise the reader must know it.
  bool pattern = false;
};

// The keys that all architectures share: lengths, head counts and sizes (arrays and keys of their
// own for local layers where the kinds differ), window, epsilon, rope. A family may set any of them
// again. What a local or global layer looks like: kind_of().
void synth_common_keys(const ModelFacts& m, SynthFile& file, const SynthKeys& keys = {});

// The tensors that rope_scaling asks for: rope_freqs, or the two sets of longrope factors.
// rope_freqs goes on with ones up to `n_pairs`.
void synth_rope_tensors(const ModelFacts& m, SynthFile& file, int n_pairs = 0);

const LayerKindFacts& kind_of(const ModelFacts& m, int layer);

// token_embd, output_norm and, if it is not tied, output.
void synth_ends(const ModelFacts& m, SynthFile& file);
// attn_q, attn_k, attn_v, attn_output of layer prefix `b` ("blk.0."). `gain` is of q and k:
// kSynthSharpness where they have no norm.
void synth_attention(const ModelFacts& m, const LayerKindFacts& kind, const std::string& b,
                     SynthFile& file, float gain = 1);
// ffn_gate, ffn_up, ffn_down.
void synth_ffn(const ModelFacts& m, const std::string& b, SynthFile& file);

// Means of the factors of the norms of q and k: scores get a deviation of 2.25. A query then looks
// at a few keys of its window, as in a trained model, and a key too many or too few shows in the
// logits.
constexpr float kSynthSharpness = 1.5f;

}  // namespace weir

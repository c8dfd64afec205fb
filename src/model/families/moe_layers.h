// Pieces of a layer that the families with experts have in common: read, applied, synthesized.
#pragma once

#include <cstdint>
#include <string>

#include "model/families/layers.h"
#include "model/moe.h"

namespace weir {

class SynthFile;
class WeightLoader;
struct ModelFacts;

// A layer's feed-forward with silu: dense, or experts, beside a shared one where the model has it.
struct FeedForward {
  FfnWeights dense;       // of the whole layer, or the shared expert
  float dense_limit = 0;  // see limited_swiglu(); 0: none
  bool has_experts = false;
  Router router;
  Experts experts;
  WeightSide weight_side = WeightSide::output;

  static FeedForward read_dense(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff);
  // Router and experts; the choice bias and the shared expert are the family's.
  static FeedForward read_experts(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff,
                                  const Router& router);
  ggml_tensor* apply(GraphBuilder& g, ggml_tensor* x) const;
};

// A width in the file: 1 or more, and small enough that products of two are numbers.
int64_t read_width(WeightLoader& w, const char* key);
int64_t read_width(WeightLoader& w, const char* key, int64_t otherwise);

// ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp.
FfnWeights read_shared_expert(WeightLoader& w, int layer, int64_t n_embd, int64_t n_ff);

// The output gate of attention: `attended` [v_dim * n_heads, n_tokens] times `gate`, which has one
// factor a head or one an element.
ggml_tensor* gate_heads(GraphBuilder& g, ggml_tensor* attended, ggml_tensor* gate, int v_dim);

// --- synthetic models ---------------------------------------------------------------------------

// expert_count, expert_used_count, expert_feed_forward_length.
void synth_expert_keys(const ModelFacts& m, SynthFile& file);
// The blocks of draft layers, which hold what a local layer holds: block_count and
// nextn_predict_layers, and head counts for them where those are arrays.
void synth_draft_keys(const ModelFacts& m, SynthFile& file);
// What joins the main model's state and the next token's embedding in front of a draft layer.
void synth_draft_ends(const ModelFacts& m, const std::string& b, SynthFile& file);
// Sinks as large as the scores of a window's keys together.
void synth_sinks(const std::string& b, int n_heads, SynthFile& file);
// The three matrices of a shared expert; `gain` is of gate and up.
void synth_shared_expert(const std::string& b, int64_t n_embd, int64_t n_ff, SynthFile& file,
                         float gain = 1);

}  // namespace weir

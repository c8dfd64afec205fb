#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/attention_batch.h"
#include "model/rope.h"

struct ggml_cgraph;
struct ggml_context;
struct ggml_tensor;

namespace weir {

enum class Activation : uint8_t { silu, gelu, relu };  // gelu in its tanh form

// The pieces that family files are written with. Activations are f32 [width, n_tokens], heads
// [head_dim, n_heads, n_tokens].
class GraphBuilder {
 public:
  // Adds the inputs of a step to `ctx`. `attention` may be used until the graph was computed.
  // `exact`: see ModelOptions.
  GraphBuilder(ggml_context* ctx, AttentionBatch& attention, int64_t n_tokens, int64_t n_outputs,
               bool exact = false);

  ggml_context* context() const { return ctx_; }
  int64_t n_tokens() const { return n_tokens_; }
  bool has_outputs() const { return n_outputs_ > 0; }

  ggml_tensor* embed(ggml_tensor* table);  // rows of the step's tokens
  ggml_tensor* scale(ggml_tensor* x, float factor);
  ggml_tensor* add(ggml_tensor* a, ggml_tensor* b);
  ggml_tensor* mul(ggml_tensor* a, ggml_tensor* b);  // element by element; b may repeat
  // Over the first dimension; without a weight if that is null.
  ggml_tensor* rms_norm(ggml_tensor* x, ggml_tensor* weight, float eps);
  ggml_tensor* layer_norm(ggml_tensor* x, ggml_tensor* weight, float eps);  // mean removed, no bias
  ggml_tensor* linear(ggml_tensor* weight, ggml_tensor* x, ggml_tensor* bias = nullptr);
  ggml_tensor* heads(ggml_tensor* x, int64_t head_dim);  // [w, n] -> [head_dim, w / head_dim, n]
  // Elements first .. first + head_dim * n_heads - 1 of a fused projection, as heads.
  ggml_tensor* heads(ggml_tensor* x, int64_t head_dim, int64_t n_heads, int64_t first);
  ggml_tensor* rope(ggml_tensor* heads, const RopeLayer& layer);
  // activation(gate) * up. Without `up`, `gate` holds both, gate first.
  ggml_tensor* gated(Activation activation, ggml_tensor* gate, ggml_tensor* up);
  ggml_tensor* softcap(ggml_tensor* x, float cap);  // cap * tanh(x / cap)
  // q, k, v as heads; stores k and v in the layer's KV and reads what the layer may see.
  ggml_tensor* attend(int layer, const AttentionParams& params, ggml_tensor* q, ggml_tensor* k,
                      ggml_tensor* v);
  // Only the rows whose logits are wanted. Call it when has_outputs().
  ggml_tensor* output_rows(ggml_tensor* x);
  // f32 [1, 1, n_tokens]: `of` of each token's position, for mul() with heads.
  ggml_tensor* of_position(std::function<float(int64_t position)> of);

  // Inputs to fill once the graph has memory: i32. `rows` is null when every token is an output.
  ggml_tensor* tokens() const { return tokens_; }
  ggml_tensor* positions() const { return positions_; }
  ggml_tensor* rows() const { return rows_; }
  // [1, n_tokens] zeros, or null.
  ggml_tensor* zeros() const { return zeros_; }
  void fill_of_position(std::span<const int64_t> positions) const;

 private:
  ggml_tensor* product(ggml_tensor* weight, ggml_tensor* x);

  ggml_context* ctx_;
  AttentionBatch& attention_;
  int64_t n_tokens_, n_outputs_;
  ggml_tensor* tokens_ = nullptr;
  ggml_tensor* positions_ = nullptr;
  ggml_tensor* rows_ = nullptr;
  ggml_tensor* zeros_ = nullptr;
  struct OfPosition {
    ggml_tensor* tensor;
    std::function<float(int64_t)> of;
  };
  std::vector<OfPosition> of_position_;
};

}  // namespace weir

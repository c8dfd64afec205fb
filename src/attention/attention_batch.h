#pragma once

#include <cstdint>
#include <memory>

#include "attention/kv_device.h"
#include "kv/step.h"

struct ggml_context;
struct ggml_tensor;

namespace weir {

// A step's block tables, resolved per layer, and the ops that use them. One object per step; it
// must outlive the computation of the graph built with it. Tokens of a batch are the items of the
// step one after the other.
class AttentionBatch {
 public:
  // `layout` and `step` must outlive the batch. `n_threads` is the largest team that will compute
  // the graph. Scratch and workspace come from
  // buffers that the caller keeps from step to step; one batch uses them at a time.
  struct Buffers;
  AttentionBatch(const KvLayout& layout, const Step& step, KvDevice& device, int n_threads,
                 Buffers& buffers);
  ~AttentionBatch();
  AttentionBatch(const AttentionBatch&) = delete;
  AttentionBatch& operator=(const AttentionBatch&) = delete;

  int64_t n_tokens() const;

  // Adds attention of model layer `layer` to the graph. q: f32 [k_dim, n_heads, n_tokens];
  // k: f32 [k_dim, n_kv_heads, n_tokens], v: f32 [v_dim, n_kv_heads, n_tokens], both already
  // normed and rotated, or both null for a layer that reads an earlier layer's KV; elements of a
  // row contiguous. params.sinks and params.key_factors must outlive the computation.
  // Returns f32 [v_dim * n_heads, n_tokens].
  //
  // Layers of a graph must be computed in the order in which they were added, as those of a
  // transformer are: they share scratch and workspace.
  ggml_tensor* attend(ggml_context* ctx, int layer, const AttentionParams& params, ggml_tensor* q,
                      ggml_tensor* k, ggml_tensor* v);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Memory of scratch rows and of partial results, kept between steps.
struct AttentionBatch::Buffers {
  Buffers();
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  int64_t bytes() const;  // what is allocated now: compute memory, not KV

  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace weir

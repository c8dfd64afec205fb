#include "model/families/per_layer_input.h"

#include <cmath>
#include <numbers>

#include "ggml.h"
#include "model/graph.h"
#include "model/synth_file.h"
#include "model/weight_loader.h"

namespace weir {

ggml_tensor* PerLayerInput::vectors(GraphBuilder& g, ggml_tensor* x) const {
  ggml_context* ctx = g.context();
  ggml_tensor* looked_up = g.scale(g.embed(token_embd_), std::sqrt(static_cast<float>(width_)));
  ggml_tensor* projected =
      g.scale(g.linear(model_proj_, x), 1.0f / std::sqrt(static_cast<float>(n_embd_)));
  // Normed over the numbers of a layer, not over those of all layers.
  projected = g.rms_norm(g.heads(projected, width_), proj_norm_, eps_);
  ggml_tensor* sum =
      g.add(ggml_reshape_2d(ctx, projected, looked_up->ne[0], looked_up->ne[1]), looked_up);
  return g.scale(sum, 1.0f / std::numbers::sqrt2_v<float>);
}

ggml_tensor* PerLayerInput::of_layer(GraphBuilder& g, ggml_tensor* vectors, int layer) const {
  return ggml_view_2d(g.context(), vectors, width_, vectors->ne[1], vectors->nb[1],
                      static_cast<size_t>(layer * width_) * vectors->nb[0]);
}

ggml_tensor* PerLayerInput::term(GraphBuilder& g, const Layer& layer, ggml_tensor* x,
                                 ggml_tensor* vector) const {
  ggml_tensor* gate = ggml_gelu(g.context(), g.linear(layer.gate, x));
  return g.rms_norm(g.linear(layer.proj, ggml_mul(g.context(), gate, vector)), layer.norm, eps_);
}

// --- tensors ------------------------------------------------------------------------------------

void PerLayerInput::read(WeightLoader& w, int64_t n_embd, int64_t width, int64_t n_vocab,
                         float eps) {
  n_embd_ = n_embd;
  width_ = width;
  eps_ = eps;
  const int64_t all = width * static_cast<int64_t>(w.geometry().layers.size());
  token_embd_ = w.table("per_layer_token_embd.weight", all, n_vocab);
  model_proj_ = w.matrix("per_layer_model_proj.weight", n_embd, all);
  proj_norm_ = w.vector("per_layer_proj_norm.weight", width);
}

PerLayerInput::Layer PerLayerInput::read_layer(WeightLoader& w, const std::string& block) const {
  return {.gate = w.matrix(block + "inp_gate.weight", n_embd_, width_),
          .proj = w.matrix(block + "proj.weight", width_, n_embd_),
          .norm = w.vector(block + "post_norm.weight", n_embd_)};
}

void PerLayerInput::synthesize(SynthFile& file, int64_t n_embd, int64_t width, int64_t n_layers,
                               int64_t n_vocab) {
  file.matrix("per_layer_token_embd.weight", width * n_layers, n_vocab);
  file.matrix("per_layer_model_proj.weight", n_embd, width * n_layers);
  file.norm("per_layer_proj_norm.weight", width);
}

void PerLayerInput::synthesize_layer(SynthFile& file, const std::string& block, int64_t n_embd,
                                     int64_t width, float mean) {
  file.matrix(block + "inp_gate.weight", n_embd, width);
  file.matrix(block + "proj.weight", width, n_embd);
  file.norm(block + "post_norm.weight", n_embd, mean);
}

}  // namespace weir

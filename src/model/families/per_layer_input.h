#pragma once

#include <cstdint>
#include <string>

struct ggml_tensor;

namespace weir {

class GraphBuilder;
class SynthFile;
class WeightLoader;

// Per-layer embeddings (Gemma 3n, Gemma 4 E2B and E4B): a token gives every layer a short vector of
// its own, `width` numbers, from a table and from its embedding. The layer adds it to its output,
// gated by that output.
class PerLayerInput {
 public:
  struct Layer {
    ggml_tensor *gate = nullptr, *proj = nullptr, *norm = nullptr;
  };

  // Asks for the tensors that all layers share.
  void read(WeightLoader& w, int64_t n_embd, int64_t width, int64_t n_vocab, float eps);
  Layer read_layer(WeightLoader& w, const std::string& block) const;

  // The vectors of all layers, [width * n_layers, n_tokens]. x: the scaled embeddings.
  ggml_tensor* vectors(GraphBuilder& g, ggml_tensor* x) const;
  // Those of one layer, [width, n_tokens]: a view.
  ggml_tensor* of_layer(GraphBuilder& g, ggml_tensor* vectors, int layer) const;
  // norm(proj(gelu(gate x) * vector)): what the layer adds.
  ggml_tensor* term(GraphBuilder& g, const Layer& layer, ggml_tensor* x, ggml_tensor* vector) const;

  // Lists the tensors of a synthetic model.
  static void synthesize(SynthFile& file, int64_t n_embd, int64_t width, int64_t n_layers,
                         int64_t n_vocab);
  // `mean`: of the factors of what a layer adds.
  static void synthesize_layer(SynthFile& file, const std::string& block, int64_t n_embd,
                               int64_t width, float mean = 1.0f);

 private:
  int64_t n_embd_ = 0, width_ = 0;
  float eps_ = 0;
  ggml_tensor *token_embd_ = nullptr, *model_proj_ = nullptr, *proj_norm_ = nullptr;
};

}  // namespace weir

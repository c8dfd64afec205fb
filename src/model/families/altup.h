#pragma once

#include <cstdint>
#include <string>

struct ggml_tensor;

namespace weir {

class GraphBuilder;
class SynthFile;
class WeightLoader;

// Alternating updates (Gemma 3n): the residual stream is several streams wide, and a layer computes
// with one of them, the active one. The layer's effect on all of them is predicted before it and
// corrected after it, with coefficients that each token chooses. Streams: [n_embd, n_streams,
// n_tokens].
class AltUp {
 public:
  struct Layer {
    ggml_tensor *router = nullptr, *router_norm = nullptr;
    ggml_tensor *predict_coef = nullptr, *correct_coef = nullptr, *correct_scale = nullptr;
  };

  // Reads keys and asks for the tensors that all layers share.
  void read(WeightLoader& w, int64_t n_embd, float eps);
  Layer read_layer(WeightLoader& w, const std::string& block) const;

  // The streams of scaled embeddings: x itself, then projections of x that are as long as x.
  ggml_tensor* spread(GraphBuilder& g, ggml_tensor* x) const;
  ggml_tensor* active(GraphBuilder& g, ggml_tensor* streams) const;  // [n_embd, n_tokens]
  ggml_tensor* predict(GraphBuilder& g, const Layer& layer, ggml_tensor* streams) const;
  // out: what the layer made of the active prediction.
  ggml_tensor* correct(GraphBuilder& g, const Layer& layer, ggml_tensor* predicted,
                       ggml_tensor* out) const;
  // Adds x to every stream but the first.
  ggml_tensor* add_to_others(GraphBuilder& g, ggml_tensor* streams, ggml_tensor* x) const;
  // The mean of the first stream and of projections of the others that are as long as the first.
  ggml_tensor* merge(GraphBuilder& g, ggml_tensor* streams) const;
  ggml_tensor* output_rows(GraphBuilder& g, ggml_tensor* streams) const;

  // Lists the keys and tensors of a synthetic model.
  static void synthesize(SynthFile& file, const std::string& arch, int64_t n_embd);
  static void synthesize_layer(SynthFile& file, const std::string& block, int64_t n_embd);

 private:
  ggml_tensor* chosen(GraphBuilder& g, const Layer& layer, ggml_tensor* x) const;
  ggml_tensor* scaled_to(GraphBuilder& g, ggml_tensor* x, ggml_tensor* model) const;

  int64_t n_embd_ = 0, n_streams_ = 0, active_ = 0;
  float eps_ = 0;
  ggml_tensor *proj_ = nullptr, *unembd_proj_ = nullptr;
};

}  // namespace weir

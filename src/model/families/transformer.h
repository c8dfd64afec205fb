#pragma once

#include <cstdint>
#include <memory>

#include "model/families/family.h"
#include "model/graph.h"

namespace weir {

class WeightLoader;
struct KvLayer;

// The frame of a decoder: embedding, one layer after another, norm and output. A family fills in
// its layers. On the last one only the rows of the outputs go on behind attention.
class Transformer : public FamilyModel {
 public:
  ggml_tensor* build(GraphBuilder& g) const final;
  int64_t n_vocab() const final { return n_vocab_; }
  int64_t n_embd() const final { return n_embd_; }

 protected:
  // Reads embedding_length, token_embd, output_norm and output (token_embd if it is not there).
  void read_ends(WeightLoader& w);
  // False, with an error in the loader, if a layer reads another one's KV.
  static bool layers_own_kv(WeightLoader& w);

  virtual ggml_tensor* embed(GraphBuilder& g) const { return g.embed(token_embd_); }
  // What layer `i` attends to, [heads * v_dim, n_tokens], from the residual stream x.
  virtual ggml_tensor* attention(GraphBuilder& g, int i, ggml_tensor* x) const = 0;
  // The residual stream behind layer `i`, from that in front of it and the attention.
  virtual ggml_tensor* rest(GraphBuilder& g, int i, ggml_tensor* x,
                            ggml_tensor* attended) const = 0;
  virtual ggml_tensor* logits(GraphBuilder& g, ggml_tensor* x) const = 0;

  int n_layers_ = 0;
  int64_t n_embd_ = 0, n_vocab_ = 0;
  ggml_tensor *token_embd_ = nullptr, *output_norm_ = nullptr, *output_ = nullptr;
};

}  // namespace weir

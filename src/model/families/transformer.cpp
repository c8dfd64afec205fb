#include "model/families/transformer.h"

#include <algorithm>

#include "model/weight_loader.h"

namespace weir {

ggml_tensor* Transformer::build(GraphBuilder& g) const {
  ggml_tensor* x = embed(g);
  for (int i = 0; i < n_layers_; ++i) {
    ggml_tensor* attended = attention(g, i, x);
    if (i + 1 == n_layers_) {
      // Every token has stored its K and V by now; only the outputs' rows go on.
      if (!g.has_outputs()) return attended;
      attended = g.output_rows(attended);
      x = g.output_rows(x);
    }
    x = rest(g, i, x, attended);
  }
  return logits(g, x);
}

void Transformer::read_ends(WeightLoader& w) {
  n_layers_ = static_cast<int>(w.geometry().layers.size());
  n_embd_ = w.integer("embedding_length");
  n_vocab_ = w.row_count("token_embd.weight");
  token_embd_ = w.table("token_embd.weight", n_embd_, n_vocab_);
  output_norm_ = w.vector("output_norm.weight", n_embd_);
  output_ =
      w.matrix(w.has("output.weight") ? "output.weight" : "token_embd.weight", n_embd_, n_vocab_);
}

bool Transformer::layers_own_kv(WeightLoader& w) {
  const std::vector<KvLayer>& layers = w.geometry().layers;
  if (std::all_of(layers.begin(), layers.end(), [](const KvLayer& l) { return l.owns_kv(); }))
    return true;
  w.fail(Code::unsupported, "key " + w.full_key("attention.shared_kv_layers") +
                                ": layers of this architecture do not share their keys and values");
  return false;
}

}  // namespace weir

#include "model/graph.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ggml.h"

namespace weir {
namespace {

ggml_tensor* input(ggml_context* ctx, const char* name, int64_t size) {
  ggml_tensor* tensor = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, size);
  ggml_set_name(tensor, name);
  ggml_set_input(tensor);
  return tensor;
}

}  // namespace

GraphBuilder::GraphBuilder(ggml_context* ctx, AttentionBatch& attention, int64_t n_tokens,
                           int64_t n_outputs, bool exact)
    : ctx_(ctx), attention_(attention), n_tokens_(n_tokens), n_outputs_(n_outputs) {
  tokens_ = input(ctx, "tokens", n_tokens);
  positions_ = input(ctx, "positions", n_tokens);
  if (n_outputs > 0 && n_outputs < n_tokens) rows_ = input(ctx, "output_rows", n_outputs);
  if (exact) zeros_ = input(ctx, "zeros", n_tokens);
}

ggml_tensor* GraphBuilder::embed(ggml_tensor* table) { return ggml_get_rows(ctx_, table, tokens_); }

ggml_tensor* GraphBuilder::scale(ggml_tensor* x, float factor) {
  return ggml_scale(ctx_, x, factor);
}

ggml_tensor* GraphBuilder::add(ggml_tensor* a, ggml_tensor* b) { return ggml_add(ctx_, a, b); }

ggml_tensor* GraphBuilder::mul(ggml_tensor* a, ggml_tensor* b) { return ggml_mul(ctx_, a, b); }

ggml_tensor* GraphBuilder::rms_norm(ggml_tensor* x, ggml_tensor* weight, float eps) {
  ggml_tensor* normed = ggml_rms_norm(ctx_, x, eps);
  return weight ? ggml_mul(ctx_, normed, weight) : normed;
}

ggml_tensor* GraphBuilder::layer_norm(ggml_tensor* x, ggml_tensor* weight, float eps) {
  return ggml_mul(ctx_, ggml_norm(ctx_, x, eps), weight);
}

ggml_tensor* GraphBuilder::product(ggml_tensor* weight, ggml_tensor* x) {
  if (!zeros_) return ggml_mul_mat(ctx_, weight, x);
  // ggml's product by experts, with a single expert: one dot product after another, so the bits of
  // a row do not depend on how many rows there are.
  const int64_t in = weight->ne[0], out = weight->ne[1], n = x->ne[1];
  ggml_tensor* y = ggml_mul_mat_id(ctx_, ggml_reshape_3d(ctx_, weight, in, out, 1),
                                   ggml_reshape_3d(ctx_, x, in, 1, n),
                                   ggml_view_2d(ctx_, zeros_, 1, n, sizeof(int32_t), 0));
  return ggml_reshape_2d(ctx_, y, out, n);
}

ggml_tensor* GraphBuilder::linear(ggml_tensor* weight, ggml_tensor* x, ggml_tensor* bias) {
  ggml_tensor* y = product(weight, x);
  return bias ? ggml_add(ctx_, y, bias) : y;
}

ggml_tensor* GraphBuilder::heads(ggml_tensor* x, int64_t head_dim) {
  return ggml_reshape_3d(ctx_, x, head_dim, x->ne[0] / head_dim, x->ne[1]);
}

ggml_tensor* GraphBuilder::heads(ggml_tensor* x, int64_t head_dim, int64_t n_heads, int64_t first) {
  const size_t element = ggml_element_size(x);
  return ggml_view_3d(ctx_, x, head_dim, n_heads, x->ne[1], static_cast<size_t>(head_dim) * element,
                      x->nb[1], static_cast<size_t>(first) * element);
}

ggml_tensor* GraphBuilder::rope(ggml_tensor* heads, const RopeLayer& layer) {
  return rotated(ctx_, heads, positions_, layer);
}

ggml_tensor* GraphBuilder::gated(Activation activation, ggml_tensor* gate, ggml_tensor* up) {
  switch (activation) {
    case Activation::silu:
      return up ? ggml_swiglu_split(ctx_, gate, up) : ggml_swiglu(ctx_, gate);
    case Activation::gelu:
      return up ? ggml_geglu_split(ctx_, gate, up) : ggml_geglu(ctx_, gate);
    case Activation::relu:
      return up ? ggml_reglu_split(ctx_, gate, up) : ggml_reglu(ctx_, gate);
  }
  WEIR_CHECK(false && "an activation without a case");
}

ggml_tensor* GraphBuilder::softcap(ggml_tensor* x, float cap) {
  return ggml_scale(ctx_, ggml_tanh(ctx_, ggml_scale(ctx_, x, 1.0f / cap)), cap);
}

ggml_tensor* GraphBuilder::attend(int layer, const AttentionParams& params, ggml_tensor* q,
                                  ggml_tensor* k, ggml_tensor* v) {
  return attention_.attend(ctx_, layer, params, q, k, v);
}

ggml_tensor* GraphBuilder::output_rows(ggml_tensor* x) {
  WEIR_CHECK(has_outputs());
  return rows_ ? ggml_get_rows(ctx_, x, rows_) : x;
}

ggml_tensor* GraphBuilder::of_position(std::function<float(int64_t)> of) {
  ggml_tensor* tensor = ggml_new_tensor_3d(ctx_, GGML_TYPE_F32, 1, 1, n_tokens_);
  ggml_set_name(tensor, "of_position");
  ggml_set_input(tensor);
  of_position_.push_back({tensor, std::move(of)});
  return tensor;
}

void GraphBuilder::fill_of_position(std::span<const int64_t> positions) const {
  for (const OfPosition& input : of_position_)
    if (auto* out = static_cast<float*>(input.tensor->data))
      std::transform(positions.begin(), positions.end(), out, input.of);
}

}  // namespace weir

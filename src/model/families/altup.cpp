#include "model/families/altup.h"

#include <limits>

#include "ggml.h"
#include "model/graph.h"
#include "model/synth_file.h"
#include "model/weight_loader.h"

namespace weir {
namespace {

// What all published models have, and what llama.cpp takes without reading the keys.
constexpr int64_t kStreams = 4, kActive = 0;
// The original divides by no smaller mean square than this.
constexpr float kSmallestSquare = 1e-5f;

ggml_tensor* mean_square(ggml_context* ctx, ggml_tensor* x) {
  return ggml_mean(ctx, ggml_sqr(ctx, x));
}

// Streams [begin, end): a view.
ggml_tensor* streams_between(ggml_context* ctx, ggml_tensor* x, int64_t begin, int64_t end) {
  return ggml_view_3d(ctx, x, x->ne[0], end - begin, x->ne[2], x->nb[1], x->nb[2],
                      static_cast<size_t>(begin) * x->nb[1]);
}

}  // namespace

// x [n_embd, n, n_tokens], each row made as long as the token's row of `model` [n_embd, n_tokens].
ggml_tensor* AltUp::scaled_to(GraphBuilder& g, ggml_tensor* x, ggml_tensor* model) const {
  ggml_context* ctx = g.context();
  ggml_tensor* wanted = ggml_sqrt(ctx, mean_square(ctx, model));
  wanted = ggml_reshape_3d(ctx, wanted, 1, 1, x->ne[2]);
  ggml_tensor* has = ggml_sqrt(ctx, ggml_clamp(ctx, mean_square(ctx, x), kSmallestSquare,
                                               std::numeric_limits<float>::max()));
  return ggml_div(ctx, ggml_mul(ctx, x, wanted), has);
}

ggml_tensor* AltUp::spread(GraphBuilder& g, ggml_tensor* x) const {
  ggml_context* ctx = g.context();
  const int64_t n_tokens = x->ne[1];
  // The projections are one matrix, rows after rows.
  ggml_tensor* proj = ggml_reshape_2d(ctx, proj_, n_embd_, n_embd_ * (n_streams_ - 1));
  ggml_tensor* others = ggml_reshape_3d(ctx, g.linear(proj, x), n_embd_, n_streams_ - 1, n_tokens);
  return ggml_concat(ctx, ggml_reshape_3d(ctx, x, n_embd_, 1, n_tokens), scaled_to(g, others, x),
                     1);
}

ggml_tensor* AltUp::active(GraphBuilder& g, ggml_tensor* streams) const {
  ggml_context* ctx = g.context();
  ggml_tensor* one = streams_between(ctx, streams, active_, active_ + 1);
  return ggml_cont_2d(ctx, one, n_embd_, streams->ne[2]);
}

// The numbers by which a token chooses coefficients: [n_streams, n_tokens], each in [-1, 1].
ggml_tensor* AltUp::chosen(GraphBuilder& g, const Layer& layer, ggml_tensor* x) const {
  ggml_tensor* n =
      g.scale(g.rms_norm(x, layer.router_norm, eps_), 1.0f / static_cast<float>(n_embd_));
  return ggml_tanh(g.context(), g.linear(layer.router, n));
}

// predicted_j = X_j + sum_i C_ji X_i
ggml_tensor* AltUp::predict(GraphBuilder& g, const Layer& layer, ggml_tensor* streams) const {
  ggml_context* ctx = g.context();
  ggml_tensor* coefs = g.linear(layer.predict_coef, chosen(g, layer, active(g, streams)));
  coefs = ggml_reshape_3d(ctx, coefs, n_streams_, n_streams_, streams->ne[2]);
  ggml_tensor* by_stream = ggml_cont(ctx, ggml_permute(ctx, streams, 1, 0, 2, 3));
  return ggml_add(ctx, ggml_mul_mat(ctx, by_stream, coefs), streams);
}

// X_j = predicted_j + (1 + c_j) (out - predicted_active)
ggml_tensor* AltUp::correct(GraphBuilder& g, const Layer& layer, ggml_tensor* predicted,
                            ggml_tensor* out) const {
  ggml_context* ctx = g.context();
  const int64_t n_tokens = predicted->ne[2];
  ggml_tensor* coefs =
      ggml_scale_bias(ctx, g.linear(layer.correct_coef, chosen(g, layer, out)), 1.0f, 1.0f);
  ggml_tensor* news = ggml_sub(ctx, out, active(g, predicted));
  news = ggml_repeat_4d(ctx, ggml_reshape_3d(ctx, news, n_embd_, 1, n_tokens), n_embd_, n_streams_,
                        n_tokens, 1);
  news = ggml_mul(ctx, news, ggml_reshape_3d(ctx, coefs, 1, n_streams_, n_tokens));
  return ggml_add(ctx, news, predicted);
}

ggml_tensor* AltUp::add_to_others(GraphBuilder& g, ggml_tensor* streams, ggml_tensor* x) const {
  ggml_context* ctx = g.context();
  ggml_tensor* others = ggml_add(ctx, streams_between(ctx, streams, 1, n_streams_),
                                 ggml_reshape_3d(ctx, x, n_embd_, 1, x->ne[1]));
  return ggml_concat(ctx, streams_between(ctx, streams, 0, 1), others, 1);
}

ggml_tensor* AltUp::merge(GraphBuilder& g, ggml_tensor* streams) const {
  ggml_context* ctx = g.context();
  const int64_t n_tokens = streams->ne[2];
  const auto stream = [&](int64_t i) {
    return ggml_cont_2d(ctx, streams_between(ctx, streams, i, i + 1), n_embd_, n_tokens);
  };
  ggml_tensor* first = stream(0);
  ggml_tensor* sum = first;
  for (int64_t i = 1; i < n_streams_; ++i) {
    ggml_tensor* proj = ggml_view_2d(ctx, unembd_proj_, n_embd_, n_embd_, unembd_proj_->nb[1],
                                     static_cast<size_t>(i - 1) * unembd_proj_->nb[2]);
    ggml_tensor* other = ggml_reshape_3d(ctx, g.linear(proj, stream(i)), n_embd_, 1, n_tokens);
    sum = g.add(sum, ggml_reshape_2d(ctx, scaled_to(g, other, first), n_embd_, n_tokens));
  }
  return g.scale(sum, 1.0f / static_cast<float>(n_streams_));
}

ggml_tensor* AltUp::output_rows(GraphBuilder& g, ggml_tensor* streams) const {
  ggml_context* ctx = g.context();
  ggml_tensor* rows =
      g.output_rows(ggml_reshape_2d(ctx, streams, n_embd_ * n_streams_, streams->ne[2]));
  return ggml_reshape_3d(ctx, rows, n_embd_, n_streams_, rows->ne[1]);
}

// --- keys and tensors ---------------------------------------------------------------------------

void AltUp::read(WeightLoader& w, int64_t n_embd, float eps) {
  n_embd_ = n_embd;
  eps_ = eps;
  n_streams_ = w.integer("altup.num_inputs", kStreams);
  active_ = w.integer("altup.active_idx", kActive);
  constexpr int64_t kMostStreams = 64;
  if (n_streams_ < 2 || n_streams_ > kMostStreams || active_ < 0 || active_ >= n_streams_)
    w.fail(Code::corrupt, "keys altup.num_inputs and altup.active_idx are " +
                              std::to_string(n_streams_) + " and " + std::to_string(active_) +
                              "; there are 2 to 64 streams, and one of them is active");
  proj_ = w.matrices("altup_proj.weight", n_embd, n_embd, n_streams_ - 1);
  unembd_proj_ = w.matrices("altup_unembd_proj.weight", n_embd, n_embd, n_streams_ - 1);
}

AltUp::Layer AltUp::read_layer(WeightLoader& w, const std::string& block) const {
  const int64_t n = n_streams_;
  return {.router = w.matrix(block + "altup_router.weight", n_embd_, n),
          .router_norm = w.vector(block + "altup_router_norm.weight", n_embd_),
          .predict_coef = w.matrix(block + "altup_predict_coef.weight", n, n * n),
          .correct_coef = w.matrix(block + "altup_correct_coef.weight", n, n),
          .correct_scale = w.vector(block + "altup_correct_scale.weight", n_embd_)};
}

void AltUp::synthesize(SynthFile& file, const std::string& arch, int64_t n_embd) {
  file.key(arch + ".altup.num_inputs", static_cast<uint32_t>(kStreams));
  file.key(arch + ".altup.active_idx", static_cast<uint32_t>(kActive));
  file.experts("altup_proj.weight", n_embd, n_embd, kStreams - 1);
  file.experts("altup_unembd_proj.weight", n_embd, n_embd, kStreams - 1);
}

void AltUp::synthesize_layer(SynthFile& file, const std::string& block, int64_t n_embd) {
  file.matrix(block + "altup_router.weight", n_embd, kStreams);
  // The router's input is divided by its width: a factor as large gives it a say.
  file.norm(block + "altup_router_norm.weight", n_embd, static_cast<float>(n_embd) / 2.0f);
  // Streams mix a little in each layer.
  constexpr float kPredictGain = 0.1f, kCorrectGain = 0.2f;
  file.matrix(block + "altup_predict_coef.weight", kStreams, kStreams * kStreams, kPredictGain);
  file.matrix(block + "altup_correct_coef.weight", kStreams, kStreams, kCorrectGain);
  file.norm(block + "altup_correct_scale.weight", n_embd);
}

}  // namespace weir

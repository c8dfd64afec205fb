#include "model/moe.h"

#include <cmath>
#include <limits>

#include "ggml.h"
#include "model/synth_file.h"
#include "model/weight_loader.h"

namespace weir {
namespace {

// gpt-oss' constants; its files have no keys for them.
constexpr float kSwigluAlpha = 1.702f, kSwigluLimit = 7.0f;
// Weights that are all but zero are not blown up: the smallest sum that is divided by, the smallest
// normal f16, is what llama.cpp takes.
constexpr float kSmallestSum = 6.103515625e-5f;

// Numbers of GGUF's expert_gating_func.
constexpr int64_t kSoftmax = 1, kSigmoid = 2, kSoftmaxOfChosen = 3, kSqrtSoftplus = 4;

ggml_tensor* probabilities(ggml_context* ctx, Gating gating, ggml_tensor* logits) {
  switch (gating) {
    case Gating::softmax:
      return ggml_soft_max(ctx, logits);
    case Gating::sigmoid:
      return ggml_sigmoid(ctx, logits);
    case Gating::softmax_of_chosen:
      return logits;
    case Gating::sqrt_softplus:
      return ggml_sqrt(ctx, ggml_softplus(ctx, logits));
  }
  return nullptr;
}

// The numbers of a table [1, n_expert, n_tokens] that belong to the chosen experts.
ggml_tensor* of_chosen(ggml_context* ctx, ggml_tensor* table, ggml_tensor* experts) {
  return ggml_get_rows(ctx, table, experts);  // [1, n_used, n_tokens]
}

ggml_tensor* product(ggml_context* ctx, ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x,
                     const Routing& routing) {
  ggml_tensor* y = ggml_mul_mat_id(ctx, weight, x, routing.experts);  // [out, n_used, n_tokens]
  return bias ? ggml_add_id(ctx, y, bias, routing.experts) : y;
}

}  // namespace

Routing route(ggml_context* ctx, const Router& router, ggml_tensor* logits) {
  const int64_t n_expert = logits->ne[0], n_tokens = logits->ne[1], n_used = router.n_used;
  ggml_tensor* probs = probabilities(ctx, router.gating, logits);
  ggml_tensor* order = router.by_logit ? logits : probs;
  if (router.choice_bias) order = ggml_add(ctx, order, router.choice_bias);

  Routing routing;
  routing.experts = ggml_argsort_top_k(ctx, order, static_cast<int>(n_used));
  ggml_tensor* weights =
      of_chosen(ctx, ggml_reshape_3d(ctx, probs, 1, n_expert, n_tokens), routing.experts);
  weights = ggml_reshape_2d(ctx, weights, n_used, n_tokens);
  if (router.gating == Gating::softmax_of_chosen) weights = ggml_soft_max(ctx, weights);
  if (router.normalize) {
    ggml_tensor* sum = ggml_clamp(ctx, ggml_sum_rows(ctx, weights), kSmallestSum,
                                  std::numeric_limits<float>::infinity());
    weights = ggml_div(ctx, weights, sum);
  }
  if (router.scale != 1.0f) weights = ggml_scale(ctx, weights, router.scale);
  routing.weights = ggml_reshape_3d(ctx, weights, 1, n_used, n_tokens);
  return routing;
}

ggml_tensor* limited_swiglu(ggml_context* ctx, ggml_tensor* gate, ggml_tensor* up, float limit) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  ggml_tensor* act = ggml_clamp(ctx, ggml_silu(ctx, gate), kNone, limit);
  return ggml_mul(ctx, act, ggml_clamp(ctx, up, -limit, limit));
}

ggml_tensor* gated(ggml_context* ctx, const Experts& experts, ggml_tensor* gate, ggml_tensor* up) {
  switch (experts.activation) {
    case ExpertActivation::silu:
      return experts.limit > 0 ? limited_swiglu(ctx, gate, up, experts.limit)
                               : ggml_swiglu_split(ctx, gate, up);
    case ExpertActivation::gelu:
      return ggml_geglu_split(ctx, gate, up);
    case ExpertActivation::relu:
      return ggml_reglu_split(ctx, gate, up);
    case ExpertActivation::clamped_swiglu:
      return ggml_swiglu_oai(ctx, gate, up, kSwigluAlpha, kSwigluLimit);
  }
  return nullptr;
}

ggml_tensor* apply_experts(ggml_context* ctx, const Experts& experts, const Routing& routing,
                           ggml_tensor* x, WeightSide side) {
  const int64_t n_embd = x->ne[0], n_tokens = x->ne[1], n_used = routing.weights->ne[1];
  ggml_tensor* in = ggml_reshape_3d(ctx, x, n_embd, 1, n_tokens);
  if (side == WeightSide::input)
    in = ggml_mul(ctx, ggml_repeat_4d(ctx, in, n_embd, n_used, n_tokens, 1), routing.weights);

  ggml_tensor *gate = nullptr, *up = nullptr;
  if (experts.gate_up) {
    ggml_tensor* both = product(ctx, experts.gate_up, nullptr, in, routing);
    const int64_t n_ff = both->ne[0] / 2;
    gate = ggml_view_3d(ctx, both, n_ff, n_used, n_tokens, both->nb[1], both->nb[2], 0);
    up = ggml_view_3d(ctx, both, n_ff, n_used, n_tokens, both->nb[1], both->nb[2],
                      static_cast<size_t>(n_ff) * both->nb[0]);
  } else {
    gate = product(ctx, experts.gate, experts.gate_bias, in, routing);
    up = product(ctx, experts.up, experts.up_bias, in, routing);
  }
  ggml_tensor* out =
      product(ctx, experts.down, experts.down_bias, gated(ctx, experts, gate, up), routing);

  if (experts.down_scale) {
    const int64_t n_expert = experts.down_scale->ne[0];
    ggml_tensor* row = ggml_reshape_3d(ctx, experts.down_scale, 1, n_expert, 1);
    ggml_tensor* table = ggml_repeat_4d(ctx, row, 1, n_expert, n_tokens, 1);
    out = ggml_mul(ctx, out, of_chosen(ctx, table, routing.experts));
  }
  if (side == WeightSide::output) out = ggml_mul(ctx, out, routing.weights);

  ggml_tensor* sum = nullptr;
  for (int64_t i = 0; i < n_used; ++i) {
    ggml_tensor* one =
        ggml_view_2d(ctx, out, n_embd, n_tokens, out->nb[2], static_cast<size_t>(i) * out->nb[1]);
    sum = sum ? ggml_add(ctx, sum, one) : one;
  }
  return n_used > 1 ? sum : ggml_reshape_2d(ctx, out, n_embd, n_tokens);
}

// --- keys and tensors ---------------------------------------------------------------------------

Router read_router(WeightLoader& w, Gating gating) {
  const std::string& arch = w.geometry().arch;
  Router router;
  router.gating = gating;
  router.n_expert = w.integer("expert_count");
  router.n_used = w.integer("expert_used_count");
  // Their outputs are summed one by one, so that many would make a graph of many nodes.
  constexpr int64_t kMostUsed = 32;
  if (router.n_used > kMostUsed)
    w.fail(Code::unsupported, "key " + arch + ".expert_used_count is " +
                                  std::to_string(router.n_used) + "; weir uses at most " +
                                  std::to_string(kMostUsed) + " experts a token");
  if (router.n_expert < 1 || router.n_used < 1 || router.n_used > router.n_expert)
    w.fail(Code::corrupt, "keys " + arch + ".expert_count and expert_used_count are " +
                              std::to_string(router.n_expert) + " and " +
                              std::to_string(router.n_used) +
                              "; at least one and at most all experts are used");
  switch (const int64_t number = w.integer("expert_gating_func", 0)) {
    case 0:
      break;
    case kSoftmax:
      router.gating = Gating::softmax;
      break;
    case kSigmoid:
      router.gating = Gating::sigmoid;
      break;
    case kSoftmaxOfChosen:
      router.gating = Gating::softmax_of_chosen;
      break;
    case kSqrtSoftplus:
      router.gating = Gating::sqrt_softplus;
      break;
    default:
      w.fail(Code::unsupported, "key " + arch + ".expert_gating_func is " + std::to_string(number) +
                                    "; weir knows 1 (softmax), 2 (sigmoid), 3 (softmax of the "
                                    "chosen) and 4 (square root of softplus)");
  }
  // A zero stands for no scaling, as in files that write the key anyway.
  if (const float scale = w.number("expert_weights_scale", 1.0f); scale != 0) router.scale = scale;
  router.normalize = w.flag("expert_weights_norm", false);
  return router;
}

void read_router_weight(WeightLoader& w, const std::string& block, int64_t n_embd, bool bias,
                        Router& router) {
  router.weight = w.matrix(block + "ffn_gate_inp.weight", n_embd, router.n_expert);
  if (bias) router.bias = w.vector(block + "ffn_gate_inp.bias", router.n_expert);
}

Experts read_experts(WeightLoader& w, const std::string& block, int64_t n_embd, int64_t n_ff,
                     int64_t n_expert, bool bias) {
  Experts e;
  if (w.has(block + "ffn_gate_up_exps.weight") && !bias) {
    e.gate_up = w.experts(block + "ffn_gate_up_exps.weight", n_embd, 2 * n_ff, n_expert);
  } else {
    e.gate = w.experts(block + "ffn_gate_exps.weight", n_embd, n_ff, n_expert);
    e.up = w.experts(block + "ffn_up_exps.weight", n_embd, n_ff, n_expert);
  }
  e.down = w.experts(block + "ffn_down_exps.weight", n_ff, n_embd, n_expert);
  if (bias) {
    e.gate_bias = w.expert_vectors(block + "ffn_gate_exps.bias", n_ff, n_expert);
    e.up_bias = w.expert_vectors(block + "ffn_up_exps.bias", n_ff, n_expert);
    e.down_bias = w.expert_vectors(block + "ffn_down_exps.bias", n_embd, n_expert);
  }
  return e;
}

void synthesize_experts(SynthFile& file, const std::string& block, const SynthExperts& e) {
  // Deviations: the bias that only the choice sees (a probability's own is about a third), and
  // other biases.
  constexpr float kChoiceBias = 0.2f, kBias = 0.1f;
  file.router(block + "ffn_gate_inp.weight", e.n_embd, e.n_expert);
  if (e.choice_bias) file.vector(block + "exp_probs_b.bias", e.n_expert, 0, kChoiceBias);
  file.experts(block + "ffn_gate_exps.weight", e.n_embd, e.n_ff, e.n_expert, e.gain);
  file.experts(block + "ffn_up_exps.weight", e.n_embd, e.n_ff, e.n_expert, e.gain);
  file.experts(block + "ffn_down_exps.weight", e.n_ff, e.n_embd, e.n_expert);
  if (e.bias == 0) return;
  file.vector(block + "ffn_gate_inp.bias", e.n_expert, 0, kBias);
  file.expert_biases(block + "ffn_gate_exps.bias", e.n_ff, e.n_expert, e.bias);
  file.expert_biases(block + "ffn_up_exps.bias", e.n_ff, e.n_expert, e.bias);
  file.expert_biases(block + "ffn_down_exps.bias", e.n_embd, e.n_expert, kBias);
}

}  // namespace weir

#include "model/moe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "model/random_tiles.h"

namespace weir {
namespace {

constexpr int64_t kEmbd = 24, kFf = 20, kTokens = 9, kExperts = 7;

struct ContextFree {
  void operator()(ggml_context* context) const { ggml_free(context); }
};

// A graph whose tensors have memory at once.
class Graph {
 public:
  Graph() : ctx_(ggml_init({8 << 20, nullptr, false})) {}
  ggml_context* ctx() const { return ctx_.get(); }

  ggml_tensor* random(std::initializer_list<int64_t> shape, float scale) {
    ggml_tensor* t = ggml_new_tensor(ctx_.get(), GGML_TYPE_F32, static_cast<int>(shape.size()),
                                     std::data(shape));
    for (int64_t i = 0; i < ggml_nelements(t); ++i) data(t)[i] = scale * random_.gaussian();
    return t;
  }
  static float* data(const ggml_tensor* t) { return static_cast<float*>(t->data); }

  void compute(ggml_tensor* result) {
    ggml_cgraph* graph = ggml_new_graph(ctx_.get());
    ggml_build_forward_expand(graph, result);
    ASSERT_EQ(ggml_graph_compute_with_ctx(ctx_.get(), graph, 1), GGML_STATUS_SUCCESS);
  }

 private:
  std::unique_ptr<ggml_context, ContextFree> ctx_;
  SynthRandom random_{5};
};

// --- the same arithmetic, written out
// -------------------------------------------------------------

double at(const ggml_tensor* t, int64_t i, int64_t j = 0, int64_t k = 0) {
  return Graph::data(t)[(k * t->ne[1] + j) * t->ne[0] + i];
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

std::vector<double> plain_weights(const Router& r, const std::vector<double>& logits,
                                  std::vector<size_t>& chosen) {
  std::vector<double> probs = logits;
  double total = 0;
  for (double z : logits) total += std::exp(z);
  for (double& p : probs) {
    if (r.gating == Gating::softmax) p = std::exp(p) / total;
    if (r.gating == Gating::sigmoid) p = sigmoid(p);
    if (r.gating == Gating::sqrt_softplus) p = std::sqrt(std::log1p(std::exp(p)));
  }
  std::vector<double> order = r.by_logit ? logits : probs;
  if (r.choice_bias)
    for (size_t e = 0; e < order.size(); ++e)
      order[e] += at(r.choice_bias, static_cast<int64_t>(e));
  chosen.resize(order.size());
  std::iota(chosen.begin(), chosen.end(), size_t{0});
  std::sort(chosen.begin(), chosen.end(), [&](size_t a, size_t b) { return order[a] > order[b]; });
  chosen.resize(static_cast<size_t>(r.n_used));
  std::vector<double> weights;
  double sum = 0;
  for (size_t e : chosen) {
    weights.push_back(r.gating == Gating::softmax_of_chosen ? std::exp(logits[e]) : probs[e]);
    sum += weights.back();
  }
  const bool divide = r.normalize || r.gating == Gating::softmax_of_chosen;
  for (double& w : weights) w = (divide ? w / sum : w) * r.scale;
  return weights;
}

double plain_gated(const Experts& e, double gate, double up) {
  switch (e.activation) {
    case ExpertActivation::silu: {
      const double act = gate * sigmoid(gate), limit = e.limit > 0 ? e.limit : INFINITY;
      return std::min(act, limit) * std::clamp(up, -limit, limit);
    }
    case ExpertActivation::gelu:
      return 0.5 * gate *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    case ExpertActivation::relu:
      return std::max(gate, 0.0) * up;
    case ExpertActivation::clamped_swiglu:
      gate = std::min(gate, 7.0);
      return gate * sigmoid(1.702 * gate) * (std::clamp(up, -7.0, 7.0) + 1);
  }
  return 0;
}

std::vector<double> plain(const Router& r, const Experts& e, const ggml_tensor* x,
                          WeightSide side) {
  std::vector<double> all;
  for (int64_t t = 0; t < x->ne[1]; ++t) {
    std::vector<double> logits(static_cast<size_t>(r.n_expert));
    for (size_t k = 0; k < logits.size(); ++k) {
      const auto expert = static_cast<int64_t>(k);
      for (int64_t i = 0; i < kEmbd; ++i) logits[k] += at(r.weight, i, expert) * at(x, i, t);
      if (r.bias) logits[k] += at(r.bias, expert);
    }
    std::vector<size_t> chosen;
    const std::vector<double> weights = plain_weights(r, logits, chosen);
    std::vector<double> out(kEmbd);
    for (size_t u = 0; u < chosen.size(); ++u) {
      const auto expert = static_cast<int64_t>(chosen[u]);
      const double before = side == WeightSide::input ? weights[u] : 1;
      const double after = side == WeightSide::output ? weights[u] : 1;
      std::vector<double> wide(kFf);
      for (int64_t f = 0; f < kFf; ++f) {
        double gate = e.gate_bias ? at(e.gate_bias, f, expert) : 0;
        double up = e.up_bias ? at(e.up_bias, f, expert) : 0;
        for (int64_t i = 0; i < kEmbd; ++i) {
          const double in = before * at(x, i, t);
          gate += in * (e.gate_up ? at(e.gate_up, i, f, expert) : at(e.gate, i, f, expert));
          up += in * (e.gate_up ? at(e.gate_up, i, kFf + f, expert) : at(e.up, i, f, expert));
        }
        wide[static_cast<size_t>(f)] = plain_gated(e, gate, up);
      }
      for (int64_t o = 0; o < kEmbd; ++o) {
        double y = e.down_bias ? at(e.down_bias, o, expert) : 0;
        for (int64_t f = 0; f < kFf; ++f)
          y += at(e.down, f, o, expert) * wide[static_cast<size_t>(f)];
        if (e.down_scale) y *= at(e.down_scale, expert);
        out[static_cast<size_t>(o)] += after * y;
      }
    }
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

// --- cases ------------------------------------------------------------------------------------

struct Case {
  Gating gating = Gating::softmax;
  ExpertActivation activation = ExpertActivation::silu;
  int64_t n_used = 3;
  bool fused = false, bias = false, choice_bias = false, normalize = false, down_scale = false;
  bool by_logit = false;
  float scale = 1, limit = 0;
  WeightSide side = WeightSide::output;
};

void check(const Case& c) {
  Graph g;
  Router r;
  r.gating = c.gating;
  r.n_expert = kExperts;
  r.n_used = c.n_used;
  r.by_logit = c.by_logit;
  r.normalize = c.normalize;
  r.scale = c.scale;
  r.weight = g.random({kEmbd, kExperts}, 0.3f);
  if (c.bias) r.bias = g.random({kExperts}, 0.5f);
  if (c.choice_bias) r.choice_bias = g.random({kExperts}, 0.5f);
  Experts e;
  e.activation = c.activation;
  e.limit = c.limit;
  // Wide enough that every clamp takes hold somewhere.
  if (c.fused) {
    e.gate_up = g.random({kEmbd, 2 * kFf, kExperts}, 0.8f);
  } else {
    e.gate = g.random({kEmbd, kFf, kExperts}, 0.8f);
    e.up = g.random({kEmbd, kFf, kExperts}, 0.8f);
  }
  e.down = g.random({kFf, kEmbd, kExperts}, 0.2f);
  if (c.bias) {
    e.gate_bias = g.random({kFf, kExperts}, 0.5f);
    e.up_bias = g.random({kFf, kExperts}, 0.5f);
    e.down_bias = g.random({kEmbd, kExperts}, 0.5f);
  }
  if (c.down_scale) e.down_scale = g.random({kExperts}, 1.0f);
  ggml_tensor* x = g.random({kEmbd, kTokens}, 1.0f);

  ggml_tensor* logits = ggml_mul_mat(g.ctx(), r.weight, x);
  if (r.bias) logits = ggml_add(g.ctx(), logits, r.bias);
  const Routing routing = route(g.ctx(), r, logits);
  ggml_tensor* out = apply_experts(g.ctx(), e, routing, x, c.side);
  ASSERT_EQ(out->ne[0], kEmbd);
  ASSERT_EQ(out->ne[1], kTokens);
  ASSERT_TRUE(ggml_is_contiguous(out));
  g.compute(out);
  const std::vector<double> expected = plain(r, e, x, c.side);
  double error = 0, power = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(Graph::data(out)[i] - expected[i], 2);
    power += expected[i] * expected[i];
  }
  // f32 sums of 24 and 20 products: 2^-24 a step, and ggml's gelu reads a table of f16.
  const double limit = c.activation == ExpertActivation::gelu ? 1e-6 : 1e-11;
  EXPECT_LT(error / power, limit) << "gating " << static_cast<int>(c.gating) << ", activation "
                                  << static_cast<int>(c.activation);
}

TEST(Moe, EveryGatingEqualsTheFormula) {
  for (Gating gating :
       {Gating::softmax, Gating::sigmoid, Gating::softmax_of_chosen, Gating::sqrt_softplus}) {
    check({.gating = gating});
    check({.gating = gating, .n_used = 1});
    check({.gating = gating, .n_used = kExperts});
    check({.gating = gating, .bias = true, .normalize = true, .scale = 2.5f});
    check({.gating = gating, .choice_bias = true, .normalize = true});
    check({.gating = gating, .by_logit = true, .side = WeightSide::input});
  }
}

TEST(Moe, EveryActivationEqualsTheFormula) {
  for (ExpertActivation activation : {ExpertActivation::silu, ExpertActivation::gelu,
                                      ExpertActivation::relu, ExpertActivation::clamped_swiglu}) {
    check({.activation = activation});
    check({.activation = activation, .bias = true});
    check({.activation = activation, .fused = true});
  }
  check({.limit = 1.5f});
  check({.fused = true, .limit = 0.5f});
}

TEST(Moe, FactorsOfOutputsAndWeightsOnInputs) {
  check({.down_scale = true});
  check({.bias = true, .normalize = true, .down_scale = true});
  check({.gating = Gating::sigmoid, .n_used = 1, .by_logit = true, .side = WeightSide::input});
  check({.gating = Gating::sigmoid, .side = WeightSide::input});
}

}  // namespace
}  // namespace weir

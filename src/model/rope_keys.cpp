#include "model/rope_keys.h"

#include <cmath>
#include <string>

#include "base/quote.h"
#include "model/weight_loader.h"

namespace weir {
namespace {

bool applies(RopeRule::On on, bool is_global) {
  switch (on) {
    case RopeRule::On::none:
      return false;
    case RopeRule::On::all:
      return true;
    case RopeRule::On::global:
      return is_global;
    case RopeRule::On::local:
      return !is_global;
  }
  return false;
}

int read_n_rot(WeightLoader& w, const KvLayer& layer, bool is_global) {
  const int64_t everywhere = w.integer("rope.dimension_count", layer.k_dim);
  const char* key = is_global || !w.has_key("rope.dimension_count_swa")
                        ? "rope.dimension_count"
                        : "rope.dimension_count_swa";
  const int64_t n_rot = w.integer(key, everywhere);
  if (n_rot >= 0 && n_rot <= layer.k_dim && n_rot % 2 == 0) return static_cast<int>(n_rot);
  w.fail(Code::corrupt, "key " + w.full_key(key) + " is " + std::to_string(n_rot) +
                            "; a head has " + std::to_string(layer.k_dim) + " elements");
  return 0;
}

// Ramp and magnitude. A magnitude in the file replaces the formula; mscale_all_dim (the log
// multiplier) takes the formula's share of it away again.
void read_yarn(WeightLoader& w, float factor, RopeLayer& rope) {
  RopeLayer::Yarn yarn;
  const int64_t original =
      w.integer("rope.scaling.original_context_length", w.integer("context_length", 0));
  if (original < 1 || original > INT32_MAX)
    w.fail(Code::corrupt, "key " + w.full_key("rope.scaling.original_context_length") + " is " +
                              std::to_string(original));
  yarn.original_context = static_cast<int>(original);
  yarn.beta_fast = w.positive("rope.scaling.yarn_beta_fast", yarn.beta_fast);
  yarn.beta_slow = w.positive("rope.scaling.yarn_beta_slow", yarn.beta_slow);
  const float log_factor = factor > 1 ? std::log(factor) : 0.0f;
  const float log_multiplier = w.number("rope.scaling.yarn_log_multiplier", 0.0f);
  const float formula = (1 + 0.1f * log_factor) / (1 + 0.1f * log_multiplier * log_factor);
  rope.magnitude *= w.positive("rope.scaling.yarn_attn_factor", formula);
  rope.yarn = yarn;
}

void read_scaling(WeightLoader& w, RopeLayer& rope) {
  const std::string type = w.text("rope.scaling.type", "linear");
  // An older key of the same meaning.
  const float factor = w.number("rope.scaling.factor", w.number("rope.scale_linear", 0.0f));
  if (factor < 0)
    w.fail(Code::corrupt, "key " + w.full_key("rope.scaling.factor") + " is negative");
  if (type == "none") return;
  if (factor > 0) rope.scale = 1.0f / factor;
  rope.magnitude = w.positive("rope.scaling.attn_factor", 1.0f);
  if (type == "yarn")
    read_yarn(w, factor, rope);
  else if (type != "linear" && type != "longrope")
    w.fail(Code::unsupported, "key " + w.full_key("rope.scaling.type") + " is " + quote(type) +
                                  "; weir knows none, linear, yarn and longrope");
}

// Llama 3 divides each pair's frequency by its own number; longrope has a set of such numbers for
// contexts up to the original one and a set for longer ones.
const ggml_tensor* read_divisors(WeightLoader& w, int n_rot, int k_dim) {
  std::string name = "rope_freqs.weight";
  if (!w.has(name)) {
    if (!w.has("rope_factors_long.weight") && !w.has("rope_factors_short.weight")) return nullptr;
    const bool is_long = w.context() > w.integer("rope.scaling.original_context_length",
                                                 w.integer("context_length", 0));
    name = is_long ? "rope_factors_long.weight" : "rope_factors_short.weight";
  }
  // Where a file has one for each pair of a head, layers that rotate fewer take the first ones.
  return w.positive_vector(name, w.row_length(name) == k_dim / 2 ? k_dim / 2 : n_rot / 2);
}

}  // namespace

RopeLayer read_rope(WeightLoader& w, const KvLayer& layer, const RopeRule& rule) {
  RopeLayer rope;
  const bool is_global = layer.retention.kind == LayerKind::global;
  if (!applies(rule.rotates, is_global)) return rope;
  rope.n_rot = read_n_rot(w, layer, is_global);
  rope.neox = rule.neox;
  rope.theta = w.positive("rope.freq_base", 10000.0f);
  if (!is_global)
    rope.theta =
        w.positive("rope.freq_base_swa", rule.local_theta > 0 ? rule.local_theta : rope.theta);
  if (applies(rule.scaled, is_global)) read_scaling(w, rope);
  if (applies(rule.divided, is_global) && rope.n_rot > 0)
    rope.divisors = read_divisors(w, rope.n_rot, layer.k_dim);
  return rope;
}

}  // namespace weir

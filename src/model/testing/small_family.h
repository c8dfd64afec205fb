#pragma once

#include <algorithm>
#include <string>

#include "geometry/builtin.h"

namespace weir {

// A catalog model with its pattern, pairings and proportions, but narrow: a window of 16 tokens,
// heads of 32 elements (keys of 64 where keys are longer than values), four of them over two KV
// heads, eight experts, no draft layers.
inline ModelFacts small_family(const std::string& id, int n_layers) {
  ModelFacts facts = **find_builtin(id);
  facts.n_layers = n_layers;
  if (facts.window) facts.window = 16;
  const int n_head = facts.global ? facts.global->n_head : facts.local->n_head;
  for (std::optional<LayerKindFacts>* kind : {&facts.global, &facts.local}) {
    if (!*kind) continue;
    LayerKindFacts& k = **kind;
    const bool has_wide_keys = k.head_dim_k != k.head_dim_v, is_grouped = k.n_head_kv != k.n_head;
    const int k_dim = has_wide_keys ? 64 : 32;
    if (k.rope_dims) k.rope_dims = *k.rope_dims * k_dim / k.head_dim_k / 2 * 2;
    k.head_dim_k = k_dim;
    k.head_dim_v = 32;
    k.n_head = (4 * k.n_head / n_head + 1) / 2 * 2;
    k.n_head_kv = is_grouped ? 2 : k.n_head;
  }
  facts.n_embd = 4 * 32;
  facts.n_ff = 160;
  facts.n_mtp_layers = 0;
  if (facts.n_expert > 0) {
    facts.n_expert = 8;
    facts.n_expert_used = std::min(facts.n_expert_used, 3);
    facts.n_ff_exp = 48;
  }
  return facts;
}

}  // namespace weir

// The dense families against llama.cpp.
#include "family_logits.h"

namespace weir {
namespace {

class Dense : public FamilyLogits {};

TEST_F(Dense, Gemma2) {
  ModelFacts facts = small_family("gemma-2-2b", 5);
  // Caps that scores and logits of random weights reach.
  facts.attn_softcap = 2;
  facts.final_softcap = 1.5;
  check_family("gemma2", {facts});
  facts.final_softcap = 0;  // the default: 30
  check_family("gemma2-default-cap", {facts});
}

TEST_F(Dense, Gemma3) {
  check_family("gemma3", {small_family("gemma-3-4b", 7)});
  ModelFacts facts = small_family("gemma-3-1b", 7);
  facts.tied_embeddings = false;
  check_family("gemma3-untied", {facts});
}

TEST_F(Dense, Cohere2) { check_family("cohere2", {small_family("command-r7b", 8)}); }

// Global layers turn by YaRN, local ones do not; with OLMo 2's shape there are only global ones.
TEST_F(Dense, Olmo2And3) {
  check_family("olmo3", {small_family("olmo-3-7b", 8)});
  check_family("olmo3-grouped", {small_family("olmo-3-32b", 5)});
  ModelFacts olmo2 = small_family("olmo-3-7b", 4);
  olmo2.window.reset();
  olmo2.local.reset();
  olmo2.rope_scaling = "none";
  check_family("olmo2", {olmo2});
}

// llama.cpp knows the window by the number of layers alone: 64.
TEST_F(Dense, Exaone4) {
  ModelFacts facts = small_family("exaone-4-32b", 64);
  facts.n_embd = 64;
  facts.n_ff = 64;
  for (LayerKindFacts* kind : {&*facts.global, &*facts.local}) {
    kind->head_dim_k = kind->head_dim_v = 16;
    if (kind->rope_dims != 0) kind->rope_dims = 16;
  }
  facts.rope_scaling = "llama3 factor=16 low=1 high=4 orig=64";
  check_family("exaone4", {facts});
  ModelFacts small = small_family("exaone-4-32b", 6);
  small.window.reset();
  small.local.reset();
  small.global->rope_dims = 32;
  small.global->rope_theta = 1e6;
  small.tied_embeddings = true;
  check_family("exaone4-all-global", {small});
}

TEST_F(Dense, Llama) {
  ModelFacts facts = small_family("llama-3.1-8b", 4);
  facts.rope_scaling = "llama3 factor=8 low=1 high=4 orig=64";
  check_family("llama", {facts});
  facts.rope_scaling = "yarn factor=4 orig=32 beta_fast=32 beta_slow=1";
  check_family("llama-yarn", {facts});
  facts.rope_scaling = "linear factor=4";
  check_family("llama-linear", {facts});
}

TEST_F(Dense, Qwen3) {
  ModelFacts facts = small_family("qwen3-8b", 4);
  facts.global->head_dim_k = facts.global->head_dim_v = 48;  // heads wider than the stream
  facts.global->rope_dims = 48;
  check_family("qwen3", {facts});
}

// Queries are multiplied by a factor that grows with their position.
TEST_F(Dense, Mistral3) {
  ModelFacts facts = small_family("ministral-3-8b", 4);
  facts.rope_scaling = "yarn factor=16 orig=16 beta_fast=32 beta_slow=1";
  check_family("mistral3", {.facts = facts, .only_distances = false});
  facts.global->head_dim_k = facts.global->head_dim_v = 24;
  facts.global->rope_dims = 24;
  check_family("mistral3-narrow-heads", {.facts = facts, .only_distances = false});
}

}  // namespace
}  // namespace weir

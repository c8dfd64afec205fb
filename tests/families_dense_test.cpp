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

}  // namespace
}  // namespace weir

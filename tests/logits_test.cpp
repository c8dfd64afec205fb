// Gemma 3 at its real geometries, and the trained tiny model, against llama.cpp: steps of many
// sizes, prompts that end at the edges of windows.
#include "family_logits.h"

namespace weir {
namespace {

const std::string kTiny = std::string(WEIR_SOURCE_DIR) + "/models/weir-tiny/weir-tiny-f16.gguf";

constexpr double kDeepLimit = 1e-4;

class Logits : public FamilyLogits {
 protected:
  // The KV geometry of a built-in model, narrow elsewhere.
  static std::string narrow(const std::string& id, int n_layers) {
    ModelFacts facts = **find_builtin(id);
    facts.n_layers = n_layers;
    facts.n_embd = 256;
    facts.n_ff = 512;
    return synthetic(id, facts);
  }
};

// Every branch of the graph on models of a few rows: what fails here fails in a second.
TEST_F(Logits, Gemma3Branches) {
  ModelFacts facts = **find_builtin("gemma-3-4b");  // linear scaling of global layers
  facts.n_embd = 96;
  facts.n_ff = 128;
  facts.window = 16;
  facts.n_layers = 13;
  for (std::optional<LayerKindFacts>* kind : {&facts.global, &facts.local}) {
    (*kind)->n_head = 4;
    (*kind)->n_head_kv = 2;
    (*kind)->head_dim_k = (*kind)->head_dim_v = 64;
  }
  for (const size_t chunk : {1, 5, 16, 17, 101})
    check({synthetic("branches", facts), 4 * 16 + 37, chunk});
  for (const size_t n : {15, 16, 17, 32}) check({synthetic("branches", facts), n, 101});

  ModelFacts untied = facts;
  untied.tied_embeddings = false;
  check({synthetic("untied", untied), 80, 33});
  ModelFacts all_global = facts;
  all_global.window.reset();
  check({synthetic("no-window", all_global), 80, 33});
  // As many layers as the 27B: another attention scale. Here it makes attention so sharp that 62
  // random layers amplify rounding (llama.cpp's own two ways differ by 4e-3); the wrong scale is
  // off by more than 0.1.
  ModelFacts deep = facts;
  deep.n_layers = 62;
  check({synthetic("deep", deep), 80, 33, "f32", false, kDeepLimit});
  check({synthetic("deep", deep), 80, 33, "f32", true, kDeepLimit});
}

// The trained model: window 128.
TEST_F(Logits, WeirTinyEqualsLlamaCpp) {
  for (const size_t chunk : {1, 3, 7, 64, 128, 129, 512}) {
    check({kTiny, 4 * 128 + 37, chunk, "f32", false});
    check({kTiny, 4 * 128 + 37, chunk, "f32", true});
  }
  for (const size_t n : {127, 128, 129, 256, 549}) check({kTiny, n, 512, "f32", false});
}

TEST_F(Logits, WeirTinyWithF16KvEqualsLlamaCpp) {
  for (const size_t chunk : {1, 3, 7, 64, 128, 129, 512}) {
    check({kTiny, 4 * 128 + 37, chunk, "f16", false, 1e-5});
  }
  for (const size_t chunk : {7, 129, 512}) {
    check({kTiny, 4 * 128 + 37, chunk, "f16", true, 1e-5});
  }
}

// 7 layers: six local ones around a global one.
TEST_F(Logits, Gemma3OneBillionGeometry) {
  const std::string file = narrow("gemma-3-1b", 7);
  constexpr size_t w = 512;
  for (const size_t chunk : {1, 3, 7, 64, 128, 129, 512}) check({file, 4 * w + 37, chunk});
  check({file, 4 * w + 37, 512, "f32", true});
  for (const size_t n : {w - 1, w, w + 1, 2 * w}) check({file, n, 128});
  check({file, 4 * w + 37, 129, "f16", true, 1e-5});
}

// Positions of global layers are divided by 8.
TEST_F(Logits, Gemma3FourBillionGeometry) {
  const std::string file = narrow("gemma-3-4b", 7);
  constexpr size_t w = 1024;
  for (const size_t chunk : {64, 128, 129, 512}) check({file, 4 * w + 37, chunk});
  check({file, 4 * w + 37, 512, "f32", true});
  check({file, 4 * w + 37, 129, "f16", true, 1e-5});
  for (const size_t n : {w - 1, w, w + 1, 2 * w}) check({file, n, 512});
  for (const size_t chunk : {1, 3, 7}) check({file, 4 * w + 37, chunk});
}

// 62 layers: the other attention scale, positions divided by 8. Fewer heads in a narrower stream,
// so that their ratio, and with it the sharpness of attention, is the 27B's.
TEST_F(Logits, Gemma3TwentySevenBillionLayers) {
  ModelFacts facts = **find_builtin("gemma-3-27b");
  for (std::optional<LayerKindFacts>* kind : {&facts.global, &facts.local}) {
    (*kind)->n_head = 2;
    (*kind)->n_head_kv = 1;
  }
  facts.n_embd = 2 * 168;
  facts.n_ff = 256;
  const std::string file = synthetic("gemma-3-27b", facts);
  check({file, 1100, 512});
  check({file, 300, 129, "f32", true});
}

}  // namespace
}  // namespace weir

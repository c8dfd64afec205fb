// The dense families against llama.cpp.
#include "family_logits.h"
#include "model/families/family.h"
#include "model/synth_file.h"
#include "reference_forward.h"

namespace weir {
namespace {

// Only the order of f32 sums differs. GELU, which is looked up in a table of halves, is coarser.
constexpr double kSiluLimit = 1e-9;

class Dense : public FamilyLogits {
 protected:
  // A model whose window llama.cpp does not know: within a window it is compared with llama.cpp,
  // over several windows with the plain reference, and that without windows with llama.cpp.
  static void check_window(const std::string& name, const ModelFacts& facts) {
    check_family(name, {.facts = facts, .limit = kSiluLimit, .peer_knows_window = false});
    check_reference(name, facts);
  }

  static void check_reference(const std::string& name, const ModelFacts& facts) {
    const std::string file = synthetic(name, facts);
    const Model& m = model(file);
    const LayerKindFacts& kind = *facts.local;
    ReferenceModel reference;
    reference.file = file;
    reference.n_layers = facts.n_layers;
    reference.n_heads = kind.n_head;
    reference.n_kv_heads = kind.n_head_kv;
    reference.head_dim = kind.head_dim_k;
    reference.theta = *kind.rope_theta;
    reference.is_fused = facts.gguf_arch == "phi3";
    if (facts.gguf_arch == "exaone4") {
      reference.has_post_norms = reference.has_qk_norms = reference.rotates_windows_only = true;
      reference.eps = 1e-6;
    }
    reference.neox = facts.gguf_arch != "llama";
    for (int i = 0; i < facts.n_layers; ++i)
      reference.windows.push_back(facts.is_global(i) ? 0 : *facts.window);

    const auto w = static_cast<size_t>(*facts.window);
    const std::vector<int32_t> tokens = random_tokens(4 * w + 37, m.n_vocab(), 7);
    const std::vector<float> expected = ReferenceForward(reference).logits(tokens);
    LogitsCase c{file, tokens.size(), 0, "f32", false, kSiluLimit};
    for (const size_t chunk : {size_t{1}, size_t{7}, w - 1, w, w + 1, 2 * w + 3, tokens.size()}) {
      SCOPED_TRACE("reference, steps of " + std::to_string(chunk));
      c.chunk = chunk;
      const std::vector<float> ours =
          weir_logits(m, KvFormat::uniform(KvType::f32, 16), kThreads, tokens, chunk);
      expect_close(c, compare(ours, expected, m.n_vocab()), {});
    }

    reference.windows.assign(static_cast<size_t>(facts.n_layers), 0);
    const std::vector<float> windowless = ReferenceForward(reference).logits(tokens);
    c.chunk = tokens.size();
    const std::vector<float> theirs = peer_logits_of(c, tokens, false);
    expect_close(c, compare(windowless, theirs, m.n_vocab()), {});
    EXPECT_GT(compare(expected, theirs, m.n_vocab()).nmse, 1e-3);  // the window matters
  }
};

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

TEST_F(Dense, Cohere2) { check_family("cohere2", {small_family("command-r7b", 8), kSiluLimit}); }

// Global layers turn by YaRN, local ones do not; with OLMo 2's shape there are only global ones.
TEST_F(Dense, Olmo2And3) {
  check_family("olmo3", {small_family("olmo-3-7b", 8), kSiluLimit});
  check_family("olmo3-grouped", {small_family("olmo-3-32b", 5), kSiluLimit});
  ModelFacts olmo2 = small_family("olmo-3-7b", 4);
  olmo2.window.reset();
  olmo2.local.reset();
  olmo2.rope_scaling = "none";
  check_family("olmo2", {olmo2, kSiluLimit});
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
  check_family("exaone4", {facts, kSiluLimit});
  ModelFacts small = small_family("exaone-4-32b", 6);
  small.window.reset();
  small.local.reset();
  small.global->rope_dims = 32;
  small.global->rope_theta = 1e6;
  small.tied_embeddings = true;
  check_family("exaone4-all-global", {small, kSiluLimit});
}

// Fewer layers with a pattern in the file: llama.cpp runs them as all-global.
TEST_F(Dense, Exaone4WithAnotherPattern) {
  ModelFacts facts = small_family("exaone-4-32b", 6);
  facts.global_layers = {0, 4};
  facts.rope_scaling = "none";
  check_reference("exaone4-pattern", facts);
}

TEST_F(Dense, Llama) {
  ModelFacts facts = small_family("llama-3.1-8b", 4);
  facts.rope_scaling = "llama3 factor=8 low=1 high=4 orig=64";
  check_family("llama", {facts, kSiluLimit});
  facts.rope_scaling = "yarn factor=4 orig=32 beta_fast=32 beta_slow=1";
  check_family("llama-yarn", {facts, kSiluLimit});
  facts.rope_scaling = "linear factor=4";
  check_family("llama-linear", {facts, kSiluLimit});
}

// Tensors that published llama files seldom have.
TEST_F(Dense, LlamaWithBiases) {
  const ModelFacts facts = small_family("llama-3.1-8b", 3);
  const LayerKindFacts& kind = *facts.global;
  const int64_t q_width = int64_t{kind.n_head} * kind.head_dim_k;
  const int64_t k_width = int64_t{kind.n_head_kv} * kind.head_dim_k;
  SynthFile file(GGML_TYPE_F32, 1);
  file.key("general.architecture", facts.gguf_arch);
  ModelFacts shapes = facts;
  shapes.n_vocab = 640;
  find_family("llama")->synthesize(shapes, file);
  for (int i = 0; i < facts.n_layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    file.vector(b + "attn_q.bias", q_width, 0, 0.5f);
    file.vector(b + "attn_k.bias", k_width, 0, 0.5f);
    file.vector(b + "attn_v.bias", k_width, 0, 0.5f);
    file.vector(b + "attn_output.bias", facts.n_embd, 0, 0.5f);
    file.vector(b + "ffn_gate.bias", *facts.n_ff, 0, 0.5f);
    file.vector(b + "ffn_up.bias", *facts.n_ff, 0, 0.5f);
    file.vector(b + "ffn_down.bias", facts.n_embd, 0, 0.5f);
  }
  file.vocabulary(640);
  ASSERT_TRUE(file.write(path_of("llama-biases"), {}).ok());
  check_family("llama-biases", {facts, kSiluLimit});
}

TEST_F(Dense, Qwen3) {
  ModelFacts facts = small_family("qwen3-8b", 4);
  facts.global->head_dim_k = facts.global->head_dim_v = 48;  // heads wider than the stream
  facts.global->rope_dims = 48;
  check_family("qwen3", {facts, kSiluLimit});
}

// Queries are multiplied by a factor that grows with their position.
TEST_F(Dense, Mistral3) {
  ModelFacts facts = small_family("ministral-3-8b", 4);
  facts.rope_scaling = "yarn factor=16 orig=16 beta_fast=32 beta_slow=1";
  check_family("mistral3", {.facts = facts, .limit = kSiluLimit, .only_distances = false});
  facts.global->head_dim_k = facts.global->head_dim_v = 24;
  facts.global->rope_dims = 24;
  check_family("mistral3-narrow-heads",
               {.facts = facts, .limit = kSiluLimit, .only_distances = false});
}

// A model without window of the same layers.
ModelFacts without_window(ModelFacts facts) {
  facts.window.reset();
  if (!facts.global) facts.global = facts.local;
  facts.local.reset();
  return facts;
}

TEST_F(Dense, MistralsWindow) {
  check_window("mistral-7b-v0.1", small_family("mistral-7b-v0.1", 4));
  check_window("ministral-8b", small_family("ministral-8b-2410", 9));
}

TEST_F(Dense, Phi3) {
  check_window("phi3", small_family("phi-3-mini-4k", 4));

  // Three quarters of a head rotate, KV heads are shared, long contexts have factors of their own.
  ModelFacts facts = without_window(small_family("phi-3-mini-4k", 4));
  facts.global->n_head_kv = 2;
  facts.global->rope_dims = 24;
  facts.rope_scaling = "longrope factor=32 orig=128";
  check_family("phi3-long", {.facts = facts, .limit = kSiluLimit});
  facts.rope_scaling = "longrope factor=32 orig=512";
  ModelOptions options;
  options.context = 512;
  check_family("phi3-short", {.facts = facts, .limit = kSiluLimit, .options = options});
}

}  // namespace
}  // namespace weir

// Gemma 3n and Gemma 4 against llama.cpp.
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>

#include "family_logits.h"

namespace weir {
namespace {

class GemmaFamilies : public FamilyLogits {
 protected:
  static void compare_kv_bytes(KvType type);
};

// Heads of global layers are twice as wide as those of local ones, and rotate half (a quarter
// would be less than a quantized type's block).
ModelFacts small_gemma4(const std::string& id, int n_layers) {
  ModelFacts facts = small_family(id, n_layers);
  facts.global->head_dim_k = facts.global->head_dim_v = 64;
  facts.global->rope_dims = 32;
  facts.final_softcap = 1.5;  // that logits of random weights reach
  if (facts.n_ff_reusing) facts.n_ff_reusing = 2 * *facts.n_ff;
  if (facts.n_embd_per_layer > 0) facts.n_embd_per_layer = 16;
  return facts;
}

// Replaces a number wherever it stands in a file; gives how often it did.
int replace_floats(const std::string& path, float from, float to) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  in.close();
  int n = 0;
  const std::string pattern(reinterpret_cast<const char*>(&from), sizeof from);
  for (size_t at = bytes.find(pattern); at != std::string::npos; at = bytes.find(pattern, at + 1)) {
    std::memcpy(bytes.data() + at, &to, sizeof to);
    ++n;
  }
  std::ofstream(path, std::ios::binary) << bytes;
  return n;
}

// One projection for K and V of global layers, which have KV heads of their own.
TEST_F(GemmaFamilies, Gemma4Dense) {
  ModelFacts facts = small_gemma4("gemma-4-31b", 13);
  facts.local->n_head_kv = 4;
  check_family("gemma4-31b", {facts});
  check_family("gemma4-31b", {.facts = facts, .share = false});
  facts = small_gemma4("gemma-4-12b", 7);
  facts.global->n_head_kv = 1;
  facts.tied_embeddings = false;
  check_family("gemma4-12b", {facts});
}

TEST_F(GemmaFamilies, Gemma4Experts) {
  ModelFacts facts = small_gemma4("gemma-4-26b-a4b", 7);
  facts.n_expert = 8;
  facts.n_expert_used = 2;
  facts.n_ff_exp = 48;
  check_family("gemma4-26b-a4b", {facts});
}

// Per-layer embeddings, layers that read an earlier one's KV, with a wider feed-forward.
TEST_F(GemmaFamilies, Gemma4Small) {
  ModelFacts facts = small_gemma4("gemma-4-e2b", 10);
  facts.global_layers = {2, 4, 7, 9};
  facts.kv_source = {0, 1, 2, 3, 4, 3, 3, 4, 3, 4};
  check_family("gemma4-e2b", {facts});
  facts = small_gemma4("gemma-4-e4b", 8);
  facts.global_layers = {1, 3, 6, 7};
  facts.kv_source = {0, 1, 2, 3, 2, 2, 3, 3};
  check_family("gemma4-e4b", {facts});
}

// The KV of the 31B, a tenth of its layers: at 32k tokens, against what llama.cpp allocates for the
// same context and type.
void GemmaFamilies::compare_kv_bytes(KvType type) {
  ModelFacts facts = **find_builtin("gemma-4-31b");
  facts.n_layers = 6;
  facts.n_embd = facts.n_ff.emplace(32);
  facts.global->n_head = facts.local->n_head = 16;
  const std::string file = synthetic("gemma4-31b-kv", facts);
  const Model& m = model(file);
  constexpr int64_t kContext = 32768;
  PeerOptions options;
  options.n_threads = kThreads;
  options.context = kContext;
  options.kv_type_k = options.kv_type_v = kv_type_name(type);
  options.flash_attention = true;  // which a quantized V needs there
  const Bytes theirs = peer(file, options)->kv_bytes();

  for (const bool share : {true, false}) {
    KvFormat format = KvFormat::uniform(type, choose_block_tokens(m.geometry()));
    format.share = share;
    const std::unique_ptr<KvDevice> device = make_cpu_device();
    auto reader = *Evaluator::create(m, *device, format, {kGiB}, kThreads);
    // Blocks are taken as for a prompt that is read, but nothing is computed.
    KvCache& cache = reader->cache();
    for (int64_t at = 0; at < kContext; at += 512) {
      const StepItem item{reader->sequence(), 512};
      Result<Step> step = cache.plan_step(std::span(&item, 1));
      ASSERT_TRUE(step.ok()) << step.status().message();
      step->commit();
    }
    const Bytes ours = cache.usage().resident();
    const KvPlan plan =
        KvPlanner::create(m.geometry(), format)->plan({.tokens = kContext, .ubatch = 512});
    EXPECT_EQ(ours, plan.resident());
    const double ratio = static_cast<double>(ours.v) / static_cast<double>(theirs.v);
    std::printf("%s, %s: %.1f of %.1f MiB, %.3f\n", kv_type_name(type),
                share ? "stored once" : "apart", static_cast<double>(ours.v) / kMiB,
                static_cast<double>(theirs.v) / kMiB, ratio);
    if (share) {
      EXPECT_LE(ratio, 0.65);
    } else {
      EXPECT_GT(ratio, 0.65);
    }
  }
}

TEST_F(GemmaFamilies, Gemma4KvStoredOnceTakesLessThanTwoThirdsOfLlamaCpps) {
  for (const KvType type : {KvType::f16, KvType::q8_0}) compare_kv_bytes(type);
}

// llama.cpp runs this family with 20 owning layers and a period of 5 only. It also estimates the
// deviation of activations with n - 1 where the original has n: a scale that makes up for that,
// written into the file, lets the two be compared, and shows that the file's scales are used.
TEST_F(GemmaFamilies, Gemma3n) {
  ModelFacts facts = small_family("gemma-3n-e2b", 25);
  const std::string file = synthetic("gemma3n", facts);
  const float published = 1.6448533535003662f, n = static_cast<float>(*facts.n_ff);
  EXPECT_EQ(replace_floats(file, published, published * std::sqrt(n / (n - 1))), 10);
  check_family("gemma3n", {facts});
}

}  // namespace
}  // namespace weir

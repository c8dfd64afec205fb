// With ModelOptions::exact a token's logits depend on its prefix alone: the same bits however the
// prompt was cut into steps and however many threads there were.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "model/testing/small_model.h"
#include "model_logits.h"

namespace weir {
namespace {

using testing::small_facts;
using testing::small_model;
using testing::TemporaryFolder;

const std::vector<std::string> kTypes = {"f32",  "f16",  "bf16", "q8_0", "q5_0", "q5_1", "q4_0",
                                         "q4_1", "q6_K", "q5_K", "q4_K", "q3_K", "q2_K"};

// Rows as long as a block of the K types.
ModelFacts wide_facts() {
  ModelFacts facts = small_facts();
  facts.n_embd = 256;
  facts.n_ff = 512;
  for (std::optional<LayerKindFacts>* kind : {&facts.global, &facts.local}) {
    (*kind)->n_head = 8;
    (*kind)->n_head_kv = 4;
    (*kind)->head_dim_k = (*kind)->head_dim_v = 64;
  }
  return facts;
}

bool are_same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Chunk lengths whose logits differ in a bit from those of single tokens.
std::string chunks_that_differ(const Model& model, int n_threads) {
  const std::vector<int32_t> tokens = random_tokens(67, model.n_vocab(), 11);
  const KvFormat format = KvFormat::uniform(KvType::f16);
  const std::vector<float> single = weir_logits(model, format, 1, tokens, 1);
  std::string differ;
  for (const size_t chunk : {2, 3, 4, 5, 7, 8, 16, 33, 64, 67}) {
    if (!are_same_bits(single, weir_logits(model, format, n_threads, tokens, chunk)))
      differ += (differ.empty() ? "" : " ") + std::to_string(chunk);
  }
  return differ;
}

TEST(Exact, BitsDoNotDependOnSteps) {
  for (const std::string& type : kTypes) {
    SCOPED_TRACE(type);
    const TemporaryFolder folder;
    const std::string file = small_model(folder, type, wide_facts());
    Result<std::unique_ptr<Model>> exact = Model::load(file, {.exact = true});
    ASSERT_TRUE(exact.ok()) << exact.error().message();
    EXPECT_EQ(chunks_that_differ(**exact, 1), "");

    // For the record, not a requirement: the library's faster products.
    Result<std::unique_ptr<Model>> fast = Model::load(file, {});
    ASSERT_TRUE(fast.ok()) << fast.error().message();
    const std::string differ = chunks_that_differ(**fast, 1);
    std::printf("%-5s without exact: %s\n", type.c_str(),
                differ.empty() ? "the same bits" : ("other bits in steps of " + differ).c_str());
  }
}

TEST(Exact, BitsDoNotDependOnThreads) {
  const TemporaryFolder folder;
  for (const std::string type : {"f32", "q8_0"}) {
    const std::string file = small_model(folder, type, wide_facts());
    Result<std::unique_ptr<Model>> exact = Model::load(file, {.exact = true});
    ASSERT_TRUE(exact.ok()) << exact.error().message();
    EXPECT_EQ(chunks_that_differ(**exact, 2), "") << type;
  }
}

}  // namespace
}  // namespace weir

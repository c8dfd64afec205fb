// The memory of a process that runs a model, beside its accounts and beside llama.cpp's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "geometry/window.h"
#include "model/testing/small_model.h"
#include "model_logits.h"
#include "oracle/llama_peer.h"
#include "plan/kv_plan.h"

namespace weir {
namespace {

using testing::small_model;
using testing::TemporaryFolder;

// Gemma 3 1B's KV, seven of its layers, in a narrow stream.
ModelFacts narrow_1b() {
  ModelFacts facts = **find_builtin("gemma-3-1b");
  facts.n_layers = 7;
  facts.n_embd = 64;
  facts.n_ff = 96;
  facts.n_vocab = 400;
  return facts;
}

Bytes resident_set() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word == "Rss:" && file >> word) return {std::atoll(word.c_str()) * kKiB};
  }
  ADD_FAILURE() << "no Rss in smaps_rollup";
  return {};
}

std::unique_ptr<Evaluator> reader(const Model& model, KvDevice& device, const KvFormat& format) {
  Result<std::unique_ptr<Evaluator>> evaluator =
      Evaluator::create(model, device, format, {4 * kGiB}, 1);
  EXPECT_TRUE(evaluator.ok()) << evaluator.status().message();
  return std::move(*evaluator);
}

void read(Evaluator& evaluator, std::span<const int32_t> tokens) {
  for (size_t at = 0; at < tokens.size(); at += 512) {
    const auto piece = tokens.subspan(at, std::min<size_t>(512, tokens.size() - at));
    ASSERT_TRUE(evaluator.append(piece, {}).ok());
  }
}

// Buffers of a step are there after the first one; from then on the process grows by what the
// accounts grow, and gives the memory back.
TEST(Memory, ResidentSetFollowsTheAccounts) {
  const TemporaryFolder folder;
  ModelFacts facts = narrow_1b();
  for (std::optional<LayerKindFacts>* kind : {&facts.global, &facts.local})
    (*kind)->n_head_kv = (*kind)->n_head;  // four times the KV: more than what libraries allocate
  const std::string path = small_model(folder, "f32", facts);
  const std::unique_ptr<Model> model = std::move(*Model::load(path, {}));
  const std::unique_ptr<KvDevice> device = make_cpu_device();
  const auto evaluator = reader(*model, *device, KvFormat::uniform(KvType::f32));
  const std::vector<int32_t> tokens = random_tokens(9 * 1024, model->n_vocab(), 3);
  read(*evaluator, std::span(tokens).first(1024));

  const Bytes accounts = evaluator->budget().used(), process = resident_set();
  read(*evaluator, std::span(tokens).subspan(1024));
  const Bytes grown = evaluator->budget().used() - accounts;
  ASSERT_GT(grown, Bytes{60 * kMiB});
  constexpr int64_t kConstant = 2 * kMiB;
  EXPECT_NEAR(static_cast<double>((resident_set() - process).v), static_cast<double>(grown.v),
              0.02 * static_cast<double>(grown.v) + kConstant);
  evaluator->clear();
  EXPECT_LT(resident_set() - process, Bytes{2 * kConstant});
}

// A prompt of 16k tokens at its peak, beside what llama.cpp allocates to read the same.
TEST(Memory, LongPromptPeaksBelowLlamaCppsAllocation) {
  const TemporaryFolder folder;
  const std::string path = small_model(folder, "f32", narrow_1b());
  const std::unique_ptr<Model> model = std::move(*Model::load(path, {}));
  const std::unique_ptr<KvDevice> device = make_cpu_device();
  constexpr size_t kTokens = 16384;
  const auto evaluator = reader(*model, *device, KvFormat::uniform(KvType::f16, 32));
  read(*evaluator, random_tokens(kTokens, model->n_vocab(), 3));

  PeerOptions options;
  options.context = kTokens + 1;  // the prompt, and a token to reply
  Result<std::unique_ptr<LlamaPeer>> peer = LlamaPeer::load(path, options);
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const Bytes peak = evaluator->budget().peak(), theirs = (*peer)->kv_bytes();
  std::printf("peak %s, llama.cpp allocates %s; between steps %s\n", format_bytes(peak).c_str(),
              format_bytes(theirs).c_str(),
              format_bytes(evaluator->cache().usage().resident()).c_str());
  EXPECT_LT(peak, theirs);
}

}  // namespace
}  // namespace weir

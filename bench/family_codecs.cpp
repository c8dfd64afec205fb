// What each KV type does to the predictions of a random model of every family: as a table for
// docs/codecs.md. The models have a real model's heads, windows and layer pattern over narrow
// layers, so that all of them take a minute.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <random>

#include "engine/evaluator.h"
#include "engine/text_quality.h"
#include "geometry/builtin.h"
#include "model/synth.h"
#include "plan/kv_plan.h"

using namespace weir;

namespace {

constexpr int64_t kTokens = 512;
constexpr KvType kTypes[] = {KvType::f32,  KvType::f16,  KvType::q8_0,
                             KvType::q6_0, KvType::q5_0, KvType::q4_0};

struct Sample {
  const char* id;
  int n_layers;  // at least one of each kind, and of those that read another's KV
};
constexpr Sample kSamples[] = {
    {"gemma-2-2b", 4},      {"gemma-3-4b", 7},           {"gemma-3n-e2b", 25},  {"gemma-4-31b", 7},
    {"gemma-4-26b-a4b", 7}, {"gemma-4-e2b", 20},         {"gpt-oss-20b", 4},    {"command-r7b", 4},
    {"llama-4-scout", 4},   {"mimo-v2-flash", 7},        {"step-3.5-flash", 6}, {"olmo-3-7b", 4},
    {"exaone-4-32b", 4},    {"smallthinker-21b-a3b", 4}, {"trinity-mini", 6},   {"laguna-xs.2", 6},
    {"phi-3-mini-4k", 3},   {"mistral-7b-v0.1", 3},      {"ministral-3-8b", 3}, {"llama-3.1-8b", 3},
    {"qwen3-8b", 3}};

ModelFacts narrow(const Sample& sample) {
  ModelFacts facts = **find_builtin(sample.id);
  facts.n_layers = sample.n_layers;
  facts.n_embd = 256;
  if (facts.n_ff_reusing) facts.n_ff_reusing = 512;
  facts.n_ff = 256;
  facts.n_mtp_layers = 0;
  if (facts.n_embd_per_layer > 0) facts.n_embd_per_layer = 32;
  if (facts.n_expert > 0) {
    facts.n_expert = 8;
    facts.n_expert_used = std::min(facts.n_expert_used, 3);
    facts.n_ff_exp = 64;
  }
  return facts;
}

// One row of the table.
Status measure(const Sample& sample, const std::string& path) {
  SynthOptions options;
  options.weights = "f32";
  options.n_vocab = 2048;
  const ModelFacts facts = narrow(sample);
  if (const auto written = synthesize(facts, options, path); !written) return written.error();
  const Result<std::unique_ptr<Model>> model = Model::load(path, {});
  if (!model) return model.error();

  const std::unique_ptr<KvDevice> device = make_cpu_device();
  std::vector<std::unique_ptr<Evaluator>> evaluators;
  std::vector<TokenReader> readers;
  for (const KvType type : kTypes) {
    const KvFormat format = KvFormat::uniform(type, choose_block_tokens((*model)->geometry()));
    Result<std::unique_ptr<Evaluator>> evaluator =
        Evaluator::create(**model, *device, format, {int64_t{1} << 30}, 1);
    if (!evaluator) return evaluator.error();
    evaluators.push_back(std::move(*evaluator));
    readers.push_back(
        [e = evaluators.back().get()](auto tokens, auto rows) { return e->append(tokens, rows); });
  }
  std::mt19937 random(1);
  std::vector<Token> tokens(kTokens);
  for (Token& token : tokens) token = static_cast<Token>(random() % 2048);
  TextQuality quality(std::move(readers), 2048);
  if (Status s = quality.read_window(tokens, kTokens); !s.ok()) return s;

  std::printf("| %s | %d |", sample.id, facts.n_layers);
  for (size_t i = 1; i < evaluators.size(); ++i) {
    std::printf(" %.1e, %.1f %% |", quality.of(i).from_first.mean(),
                100 * quality.of(i).from_first.agreement());
  }
  std::printf("\n");
  return {};
}

}  // namespace

int main() {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("weir-codecs-" + std::to_string(getpid()) + ".gguf"))
                               .string();
  std::printf("| shapes of | layers |");
  for (size_t i = 1; i < std::size(kTypes); ++i)
    std::printf(" %s |", std::string(kv_type_name(kTypes[i])).c_str());
  std::printf("\n|%s\n", "---|---|---|---|---|---|---|");
  int failed = 0;
  for (const Sample& sample : kSamples) {
    if (const Status s = measure(sample, path); !s.ok()) {
      std::fprintf(stderr, "%s: %s\n", sample.id, s.message().c_str());
      ++failed;
    }
    std::fflush(stdout);
    std::filesystem::remove(path);
  }
  return failed > 0;
}

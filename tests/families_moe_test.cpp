// The families with experts against llama.cpp.
//
// A router's choice is a comparison of numbers: where the last expert chosen and the first one left
// out are as close as rounding, the engines may take different ones, and no tolerance covers that.
// With f32 weights and KV the logits of routers agree to about 1e-6 of their deviation, so that one
// choice in some 10^5 is in doubt, and none is among these tokens. With f16 KV they agree to about
// 1e-3: synthetic routers therefore have logits with a deviation of 4, which gives the last expert
// chosen a small share in the sum where shares fall off with the logit.
#include <cmath>
#include <numbers>

#include "family_logits.h"

namespace weir {
namespace {

class Moe : public FamilyLogits {
 protected:
  // Tokens of steps that come up to each multiple of `edge`, end on it or pass over it.
  static std::vector<size_t> steps_around(size_t n, size_t edge) {
    constexpr size_t kLong = 509, kNear = 8;
    std::vector<size_t> steps;
    for (size_t at = 0; at < n; at += steps.back()) {
      const size_t next = (at / edge + 1) * edge, left = std::min(n, next) - at;
      if (left > kNear)
        steps.push_back(std::min(kLong, left - kNear));
      else if (next / edge % 2 == 0 && left == kNear && at + 2 * kNear - 1 <= n)
        steps.push_back(2 * kNear - 1);  // passes over
      else
        steps.push_back(left > 1 ? left - 1 : 1);  // a long one, then one token, to the edge
    }
    return steps;
  }

  // Both engines in the same such steps, f32.
  static void check_around(const std::string& file, size_t n, size_t edge) {
    const Model& m = model(file);
    const auto width = static_cast<size_t>(m.n_vocab());
    const std::vector<int32_t> tokens = random_tokens(n, m.n_vocab(), 7);
    PeerOptions options;
    options.context = round_up(static_cast<int64_t>(n), 256);
    options.step_tokens = options.max_outputs = 512;
    options.kv_type_k = options.kv_type_v = "f32";
    options.flash_attention = false;
    const std::unique_ptr<LlamaPeer> llama = peer(file, options);
    const std::unique_ptr<KvDevice> device = make_cpu_device();
    auto reader =
        *Evaluator::create(m, *device, KvFormat::uniform(KvType::f32, 16), {4 * kGiB}, kThreads);
    std::vector<float> ours, theirs(n * width);
    size_t at = 0;
    for (const size_t step : steps_around(n, edge)) {
      const auto part = std::span(tokens).subspan(at, step);
      std::vector<int32_t> rows(step);
      for (size_t i = 0; i < step; ++i) rows[i] = static_cast<int32_t>(i);
      const Status status =
          llama->evaluate(part, rows, std::span(theirs).subspan(at * width, step * width));
      ASSERT_TRUE(status.ok()) << status.message();
      Result<std::span<const float>> logits = reader->append(part, rows);
      ASSERT_TRUE(logits.ok()) << logits.error().message();
      ours.insert(ours.end(), logits->begin(), logits->end());
      at += step;
    }
    expect_close({file, n, edge}, compare(ours, theirs, m.n_vocab()), {});
  }
};

TEST_F(Moe, GptOss) {
  ModelFacts facts = small_family("gpt-oss-20b", 6);
  // A ramp over eight pairs: it begins before the first and ends a hair before the ninth, so that
  // llama.cpp, which rounds its ends, has the same one.
  constexpr double kLast = 7.99999, kTimes = 64 / (2 * std::numbers::pi);
  facts.rope_scaling = "yarn factor=4 orig=64";
  const double theta = std::exp(32 * std::log(kTimes) / (2 * kLast));
  facts.global->rope_theta = facts.local->rope_theta = theta;
  check_family("gpt-oss", {facts});
}

// With the model's own rope, llama.cpp rounds where weir follows the vendor: see Rope.
// UnroundedYarnIsTheFormula for the formula. Here: what that does to logits.
TEST_F(Moe, GptOssRampIsNotRounded) {
  ModelFacts facts = small_family("gpt-oss-20b", 6);
  facts.window = 128;
  for (std::optional<LayerKindFacts>* kind : {&facts.global, &facts.local}) {
    (*kind)->head_dim_k = (*kind)->head_dim_v = 64;
    (*kind)->rope_dims = 64;
  }
  const std::string file = synthetic("gpt-oss-rope", facts);
  const Model& m = model(file);
  const std::vector<int32_t> tokens = random_tokens(1024, m.n_vocab(), 7);
  const std::vector<float> theirs =
      peer_logits_of({file, tokens.size(), tokens.size()}, tokens, false);
  const std::vector<float> ours =
      weir_logits(m, KvFormat::uniform(KvType::f32, 16), kThreads, tokens, tokens.size());
  const auto width = static_cast<size_t>(m.n_vocab());
  for (const auto& [from, to] : {std::pair<size_t, size_t>{0, 8}, {8, 128}, {128, 1024}}) {
    const LogitsDifference d =
        compare(std::span(ours).subspan(from * width, (to - from) * width),
                std::span(theirs).subspan(from * width, (to - from) * width), m.n_vocab());
    std::printf("rows %4zu to %4zu: nmse %.1e from llama.cpp's rounded ramp\n", from, to, d.nmse);
    // Nothing at first, more with distance.
    EXPECT_GT(d.nmse, 1e-10);
    EXPECT_LT(d.nmse, 1.0);
  }

  // With llama.cpp's ramp, as `weir verify` reads the model, nothing is left of it.
  Result<std::unique_ptr<Model>> rounded = Model::load(file, {.rope_of_llama_cpp = true});
  ASSERT_TRUE(rounded.ok()) << rounded.status().message();
  const LogitsDifference d =
      compare(weir_logits(**rounded, KvFormat::uniform(KvType::f32, 16), kThreads, tokens, 129),
              theirs, m.n_vocab());
  EXPECT_LE(d.nmse, 1e-9);
}

TEST_F(Moe, Llama4) {
  ModelFacts facts = small_family("llama-4-scout", 6);
  facts.n_expert = 16;  // q and k are normed
  facts.rope_scaling = "llama3 factor=4 low=1 high=4 orig=64";
  check_family("llama4-16", {.facts = facts, .only_distances = false});
  facts.n_expert = 128;  // q and k are not
  facts.moe_every = 2;
  facts.rope_scaling = "none";
  check_family("llama4-128", {.facts = facts, .only_distances = false});
}

// Four chunks of 8192, the real length: keys restart at each, and the queries' factor steps.
TEST_F(Moe, Llama4ChunkEdges) {
  constexpr size_t kChunk = 8192;
  ModelFacts facts = small_family("llama-4-scout", 4);
  facts.n_expert = 16;
  facts.n_embd = facts.n_ff_exp = 32;
  for (std::optional<LayerKindFacts>* kind : {&facts.global, &facts.local}) {
    (*kind)->n_head = (*kind)->n_head_kv = 1;
    (*kind)->head_dim_k = (*kind)->head_dim_v = 16;
  }
  check_around(synthetic("llama4-chunks", facts), 4 * kChunk + 37, kChunk);
}

TEST_F(Moe, Mimo2) {
  ModelFacts facts = small_family("mimo-v2-flash", 8);
  facts.local->n_head_kv = 4;
  check_family("mimo2", {facts});
  facts.n_mtp_layers = 2;
  check_family("mimo2-drafts", {facts});
}

TEST_F(Moe, Step35) {
  ModelFacts facts = small_family("step-3.5-flash", 9);
  facts.rope_scaling = "llama3 factor=8 low=1 high=4 orig=64";
  check_family("step35", {facts});
  facts.n_mtp_layers = 2;
  check_family("step35-drafts", {facts});
}

TEST_F(Moe, SmallThinker) {
  // llama.cpp takes 4096 for the window whatever the file says.
  check_family("smallthinker",
               {.facts = small_family("smallthinker-21b-a3b", 6), .peer_knows_window = false});
  check_family("smallthinker-no-window", {small_family("smallthinker-4b-a0.6b", 4)});
}

// Four windows of the only length that llama.cpp knows.
TEST_F(Moe, SmallThinkerWindows) {
  constexpr size_t kWindow = 4096;
  ModelFacts facts = small_family("smallthinker-21b-a3b", 6);
  facts.window = kWindow;
  facts.n_embd = facts.n_ff_exp = 32;
  for (std::optional<LayerKindFacts>* kind : {&facts.global, &facts.local}) {
    (*kind)->n_head = (*kind)->n_head_kv = 1;
    (*kind)->head_dim_k = (*kind)->head_dim_v = 16;
  }
  check_around(synthetic("smallthinker-windows", facts), 4 * kWindow + 37, kWindow);
}

TEST_F(Moe, Afmoe) {
  ModelFacts facts = small_family("trinity-mini", 9);
  check_family("afmoe", {facts});
  facts.n_expert_shared = 0;
  check_family("afmoe-not-shared", {facts});
}

TEST_F(Moe, Laguna) {
  ModelFacts facts = small_family("laguna-xs.2", 9);
  facts.global->rope_theta = 1000;
  facts.rope_scaling = "yarn factor=8 orig=64";
  check_family("laguna", {facts});
  facts.attn_gate = "softplus per element";
  check_family("laguna-by-element", {facts});
}

}  // namespace
}  // namespace weir

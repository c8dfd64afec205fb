// Every family against llama.cpp's own forward pass over the same file: same tokens, logits of
// every position, prompts several windows long, cut into steps of many sizes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "geometry/builtin.h"
#include "model/synth.h"
#include "model_logits.h"
#include "oracle/llama_peer.h"

namespace weir {
namespace {

// One: the machine that runs the tests may be busy, and the library's threads wait by spinning.
constexpr int kThreads = 1;
const std::string kTiny = std::string(WEIR_SOURCE_DIR) + "/models/weir-tiny/weir-tiny-f16.gguf";

constexpr double kDeepLimit = 1e-4;

struct Case {
  std::string file;
  size_t n_tokens;
  size_t chunk;
  std::string kv_type = "f32";
  bool flash_attention = false;
  double limit = 1e-6;  // of the nmse over all rows; one row may have ten times as much
};

// The peer's logits of every position, in steps of `chunk` tokens.
std::vector<float> peer_logits(LlamaPeer& peer, std::span<const int32_t> tokens, size_t chunk) {
  const auto width = static_cast<size_t>(peer.n_vocab());
  std::vector<float> all(tokens.size() * width);
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const size_t n = std::min(chunk, tokens.size() - at);
    std::vector<int32_t> rows(n);
    for (size_t i = 0; i < n; ++i) rows[i] = static_cast<int32_t>(i);
    const Status status =
        peer.evaluate(tokens.subspan(at, n), rows, std::span(all).subspan(at * width, n * width));
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return all;
}

class Logits : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::filesystem::temp_directory_path() / ("weir-logits-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  static void TearDownTestSuite() {
    models_.clear();
    peers_.clear();
    std::filesystem::remove_all(folder_);
  }

  static std::string synthetic(const std::string& name, const ModelFacts& facts) {
    const std::string path = (folder_ / (name + ".gguf")).string();
    if (std::filesystem::exists(path)) return path;
    SynthOptions options;
    // f32: nothing but the order of sums differs between engines.
    options.weights = "f32";
    options.n_vocab = 640;
    Result<SynthSummary> summary = synthesize(facts, options, path);
    EXPECT_TRUE(summary.ok()) << summary.status().message();
    return path;
  }

  // The KV geometry of a built-in model, narrow elsewhere.
  static std::string narrow(const std::string& id, int n_layers) {
    ModelFacts facts = **find_builtin(id);
    facts.n_layers = n_layers;
    facts.n_embd = 256;
    facts.n_ff = 512;
    return synthetic(id, facts);
  }

  static const Model& model(const std::string& file) {
    std::unique_ptr<Model>& slot = models_[file];
    if (!slot) {
      Result<std::unique_ptr<Model>> loaded = Model::load(file, {});
      EXPECT_TRUE(loaded.ok()) << loaded.status().message();
      slot = std::move(*loaded);
    }
    return *slot;
  }

  static std::unique_ptr<LlamaPeer> peer(const std::string& file, const PeerOptions& options) {
    std::unique_ptr<LlamaPeer>& first = peers_[file];
    if (!first) {
      Result<std::unique_ptr<LlamaPeer>> loaded = LlamaPeer::load(file, options);
      EXPECT_TRUE(loaded.ok()) << loaded.status().message();
      first = std::move(*loaded);
    }
    Result<std::unique_ptr<LlamaPeer>> again = first->reopen(options);
    EXPECT_TRUE(again.ok()) << again.status().message();
    return std::move(*again);
  }

  static void check(const Case& c) {
    SCOPED_TRACE(std::filesystem::path(c.file).filename().string() + ", " +
                 std::to_string(c.n_tokens) + " tokens in steps of " + std::to_string(c.chunk) +
                 ", KV " + c.kv_type + (c.flash_attention ? ", flash attention" : ""));
    const Model& m = model(c.file);
    const std::vector<int32_t> tokens = random_tokens(c.n_tokens, m.n_vocab(), 7);
    PeerOptions options;
    options.n_threads = kThreads;
    options.context = round_up(static_cast<int64_t>(c.n_tokens), 256);
    options.step_tokens = options.max_outputs = static_cast<int64_t>(c.chunk);
    options.kv_type_k = options.kv_type_v = c.kv_type;
    options.flash_attention = false;
    std::vector<float> theirs = peer_logits(*peer(c.file, options), tokens, c.chunk);
    LogitsDifference own;  // between the peer's two ways to compute attention
    if (c.flash_attention) {
      options.flash_attention = true;
      std::vector<float> flash = peer_logits(*peer(c.file, options), tokens, c.chunk);
      own = compare(flash, theirs, m.n_vocab());
      theirs = std::move(flash);
    }
    const std::vector<float> ours =
        weir_logits(m, KvFormat::uniform(*parse_kv_type(c.kv_type)), kThreads, tokens, c.chunk);
    const LogitsDifference d = compare(ours, theirs, m.n_vocab());
    std::printf(
        "%-23s n %4zu chunk %3zu kv %s%s: nmse %.1e (worst row %.1e), noise %.1e, other argmax %d "
        "(gap %.1e)",
        std::filesystem::path(c.file).filename().c_str(), c.n_tokens, c.chunk, c.kv_type.c_str(),
        c.flash_attention ? " flash" : "", d.nmse, d.worst_nmse, d.noise, d.argmax_differs,
        d.margin);
    if (c.flash_attention) std::printf("; the peer's own %.1e (%.1e)", own.nmse, own.worst_nmse);
    std::printf("\n");
    EXPECT_LE(d.nmse, allowed(c.limit, own.nmse));
    EXPECT_LE(d.worst_nmse, allowed(10 * c.limit, own.worst_nmse));
    // A choice may differ only where the peer's two best logits are closer than the noise.
    EXPECT_LE(d.margin, d.noise + own.noise);
  }

  // llama.cpp's flash attention is a rounding of its own, larger than the limit on some models:
  // distances from it may be longer by its distance from llama.cpp's plain attention.
  static double allowed(double limit, double own) {
    const double distance = std::sqrt(limit) + std::sqrt(own);
    return distance * distance;
  }

 private:
  inline static std::filesystem::path folder_;
  inline static std::map<std::string, std::unique_ptr<Model>> models_;
  inline static std::map<std::string, std::unique_ptr<LlamaPeer>> peers_;
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
  // A window and a block and a bit: the edges, where small steps differ from large ones.
  for (const size_t chunk : {1, 3, 7}) check({file, w + 40, chunk});
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

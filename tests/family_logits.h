// The comparison of a family with llama.cpp's own forward pass over the same file: same tokens,
// logits of every position, prompts several windows long, cut into steps of many sizes. A family's
// test names a model of the catalog, makes it small and calls check_family().
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "geometry/builtin.h"
#include "model/synth.h"
#include "model/testing/small_family.h"
#include "model_logits.h"
#include "oracle/llama_peer.h"
#include "plan/kv_plan.h"

namespace weir {

// One comparison of logits.
struct LogitsCase {
  std::string file;
  size_t n_tokens;
  size_t chunk;
  std::string kv_type = "f32";
  bool flash_attention = false;
  double limit = 1e-6;  // of the nmse over all rows; one row may have ten times as much
};

struct FamilyCheck {
  ModelFacts facts;
  double limit = 1e-6;
  // llama.cpp reads the same window: otherwise only prompts that fit the window are compared.
  bool peer_knows_window = true;
  // A query's logits depend on distances alone, so that a shifted conversation goes on as if it had
  // not been.
  bool only_distances = true;
  bool share = true;  // see KvFormat
  bool exact = true;  // ModelOptions::exact holds for the family
  ModelOptions options = {};
};

// One: the machine that runs the tests may be busy, and the library's threads wait by spinning.
constexpr int kThreads = 1;

// The peer's logits of every position, in steps of `chunk` tokens.
inline std::vector<float> peer_logits(LlamaPeer& peer, std::span<const int32_t> tokens,
                                      size_t chunk) {
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

// llama.cpp's own rounding may be larger than the limit (flash attention on some models): distances
// from it may be longer by that distance.
inline double allowed_nmse(double limit, double own) {
  const double distance = std::sqrt(limit) + std::sqrt(own);
  return distance * distance;
}

class FamilyLogits : public testing::Test {
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

  static std::string path_of(const std::string& name) {
    return (folder_ / (name + ".gguf")).string();
  }

  // Written once: a test may put a file of its own there first.
  static std::string synthetic(const std::string& name, const ModelFacts& facts) {
    const std::string path = path_of(name);
    if (std::filesystem::exists(path)) return path;
    SynthOptions options;
    // f32: nothing but the order of sums differs between engines.
    options.weights = "f32";
    options.n_vocab = 640;
    Result<SynthSummary> summary = synthesize(facts, options, path);
    EXPECT_TRUE(summary.ok()) << summary.status().message();
    return path;
  }

  static const Model& model(const std::string& file, const ModelOptions& options = {}) {
    std::unique_ptr<Model>& slot = models_[file];
    if (!slot) {
      Result<std::unique_ptr<Model>> loaded = Model::load(file, options);
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

  static std::vector<float> peer_logits_of(const LogitsCase& c, std::span<const int32_t> tokens,
                                           bool flash_attention) {
    PeerOptions options;
    options.n_threads = kThreads;
    options.context = round_up(static_cast<int64_t>(c.n_tokens), 256);
    options.step_tokens = options.max_outputs = static_cast<int64_t>(c.chunk);
    options.kv_type_k = options.kv_type_v = c.kv_type;
    options.flash_attention = flash_attention;
    return peer_logits(*peer(c.file, options), tokens, c.chunk);
  }

  static void expect_close(const LogitsCase& c, const LogitsDifference& d,
                           const LogitsDifference& own) {
    std::printf(
        "%-23s n %4zu chunk %3zu kv %s%s: nmse %.1e (worst row %.1e), noise %.1e, other argmax %d "
        "(gap %.1e)",
        std::filesystem::path(c.file).filename().c_str(), c.n_tokens, c.chunk, c.kv_type.c_str(),
        c.flash_attention ? " flash" : "", d.nmse, d.worst_nmse, d.noise, d.argmax_differs,
        d.margin);
    std::printf(", limit %.1e", c.limit);
    if (own.nmse > 0) std::printf("; the peer's own %.1e (%.1e)", own.nmse, own.worst_nmse);
    std::printf("\n");
    EXPECT_LE(d.nmse, allowed_nmse(c.limit, own.nmse));
    EXPECT_LE(d.worst_nmse, allowed_nmse(10 * c.limit, own.worst_nmse));
    // A choice may differ only where the peer's two best logits are closer than the noise.
    EXPECT_LE(d.margin, d.noise + own.noise);
  }

  static void check(const LogitsCase& c) {
    SCOPED_TRACE(std::filesystem::path(c.file).filename().string() + ", " +
                 std::to_string(c.n_tokens) + " tokens in steps of " + std::to_string(c.chunk) +
                 ", KV " + c.kv_type + (c.flash_attention ? ", flash attention" : ""));
    const Model& m = model(c.file);
    const std::vector<int32_t> tokens = random_tokens(c.n_tokens, m.n_vocab(), 7);
    std::vector<float> theirs = peer_logits_of(c, tokens, false);
    LogitsDifference own;  // between the peer's two ways to compute attention
    if (c.flash_attention) {
      std::vector<float> flash = peer_logits_of(c, tokens, true);
      own = compare(flash, theirs, m.n_vocab());
      theirs = std::move(flash);
    }
    const std::vector<float> ours =
        weir_logits(m, KvFormat::uniform(*parse_kv_type(c.kv_type)), kThreads, tokens, c.chunk);
    expect_close(c, compare(ours, theirs, m.n_vocab()), own);
  }

  static KvFormat format_of(const FamilyCheck& f, KvType type) {
    KvFormat format = KvFormat::uniform(type, 16);
    format.share = f.share;
    return format;
  }

  // Everything that a family promises, on a model of a few megabytes.
  static void check_family(const std::string& name, const FamilyCheck& f) {
    SCOPED_TRACE(name);
    const std::string file = synthetic(name, f.facts);
    const Model& m = model(file, f.options);
    const auto window = static_cast<size_t>(f.facts.window.value_or(16));
    const size_t n = f.peer_knows_window ? 4 * window + 37 : window;
    const std::vector<int32_t> tokens = random_tokens(n, m.n_vocab(), 7);
    const auto logits = [&](KvType type, size_t chunk) {
      return weir_logits(m, format_of(f, type), kThreads, tokens, chunk);
    };

    LogitsCase c{file, n, n, "f32", false, f.limit};
    const std::vector<float> theirs = peer_logits_of(c, tokens, false);
    std::vector<float> ours;
    for (const size_t chunk :
         std::set<size_t>{1, 7, window - 1, window, window + 1, 2 * window + 3, n}) {
      SCOPED_TRACE("steps of " + std::to_string(chunk));
      c.chunk = chunk;
      ours = logits(KvType::f32, chunk);
      expect_close(c, compare(ours, theirs, m.n_vocab()), {});
    }

    check_f16(name, f, n);
    check_q8_0(name, f, n);
    check_kv(m, format_of(f, KvType::f16), window);
    if (f.only_distances) check_shift(m, format_of(f, KvType::f32), window);
    if (f.exact) check_exact(file, f, tokens);
  }

  // Where two experts are about equally good, a rounding may choose another one, and everything
  // after it differs: so that roundings can be compared, models with experts use all of them.
  static constexpr int kMostExperts = 16;
  static std::string without_choice(const std::string& name, ModelFacts facts) {
    if (facts.n_expert == 0 || facts.n_expert > kMostExperts) return synthetic(name, facts);
    facts.n_expert_used = facts.n_expert;
    return synthetic(name + "-all-experts", facts);
  }

  // With f16 KV llama.cpp rounds four things to halves: keys, values, and in its products queries
  // and weights. weir rounds the first two, to the same halves. How far the rest moves logits is
  // taken from two distances of llama.cpp's own: of its f16 KV from its f32 KV, and of its two
  // attentions. (The first alone is enough for all rows together; in a single row, where one score
  // decides, the roundings of keys and queries may happen to cancel.)
  static void check_f16(const std::string& name, const FamilyCheck& f, size_t n) {
    const std::string file = without_choice(name, f.facts);
    const Model& m = model(file, f.options);
    const std::vector<int32_t> tokens = random_tokens(n, m.n_vocab(), 7);
    LogitsCase c{file, n, n};
    const std::vector<float> theirs_f32 = peer_logits_of(c, tokens, false);
    c.kv_type = "f16";
    const std::vector<float> theirs = peer_logits_of(c, tokens, false);
    const std::vector<float> theirs_flash = peer_logits_of(c, tokens, true);
    LogitsDifference own = compare(theirs_f32, theirs, m.n_vocab());
    const LogitsDifference other = compare(theirs_flash, theirs, m.n_vocab());
    own.nmse = std::max(own.nmse, other.nmse);
    own.worst_nmse = std::max(own.worst_nmse, other.worst_nmse);
    own.noise = std::max(own.noise, other.noise);
    for (const size_t chunk : {size_t{7}, n}) {
      SCOPED_TRACE("f16, steps of " + std::to_string(chunk));
      c.chunk = chunk;
      const std::vector<float> ours =
          weir_logits(m, format_of(f, KvType::f16), kThreads, tokens, chunk);
      expect_close(c, compare(ours, theirs, m.n_vocab()), own);
    }
  }

  // Both engines round keys and values to the same 8 bits, llama.cpp queries as well: weir's logits
  // may not be farther from its own with f32 KV than llama.cpp's are from theirs. How far is a
  // matter of chance with so few roundings: a fifth more. Not for heads that are no multiple
  // of the type's block, nor where there are too many experts to use all.
  static void check_q8_0(const std::string& name, const FamilyCheck& f, size_t n) {
    constexpr double kChance = 1.2;
    SCOPED_TRACE("q8_0");
    const std::string file = without_choice(name, f.facts);
    const Model& m = model(file, f.options);
    if (!make_layout(m.geometry(), format_of(f, KvType::q8_0)) || f.facts.n_expert > kMostExperts)
      return;
    const std::vector<int32_t> tokens = random_tokens(n, m.n_vocab(), 7);
    LogitsCase c{file, n, n};
    const std::vector<float> theirs_f32 = peer_logits_of(c, tokens, false);
    c.kv_type = "q8_0";
    const std::vector<float> theirs = peer_logits_of(c, tokens, true);
    const LogitsDifference peers = compare(theirs, theirs_f32, m.n_vocab());

    const auto logits = [&](KvType type, size_t chunk) {
      return weir_logits(m, format_of(f, type), kThreads, tokens, chunk);
    };
    const std::vector<float> ours = logits(KvType::q8_0, n);
    const LogitsDifference own = compare(ours, logits(KvType::f32, n), m.n_vocab());
    const LogitsDifference cut = compare(logits(KvType::q8_0, 7), ours, m.n_vocab());
    std::printf("%-23s q8_0: nmse from f32 %.1e, the peer's %.1e; in steps of 7 %.1e\n",
                std::filesystem::path(file).filename().c_str(), own.nmse, peers.nmse, cut.nmse);
    EXPECT_LE(own.nmse, kChance * peers.nmse);
    EXPECT_LE(cut.nmse, own.nmse);
  }

  // In exact mode no bit of a logit depends on the size of a step.
  static void check_exact(const std::string& file, const FamilyCheck& f,
                          std::span<const int32_t> tokens) {
    ModelOptions options = f.options;
    options.exact = true;
    Result<std::unique_ptr<Model>> exact = Model::load(file, options);
    ASSERT_TRUE(exact.ok()) << exact.status().message();
    const auto logits = [&](size_t chunk) {
      return weir_logits(**exact, format_of(f, KvType::f16), kThreads, tokens, chunk);
    };
    const std::vector<float> whole = logits(tokens.size());
    for (const size_t chunk : {1, 7, 18}) EXPECT_EQ(logits(chunk), whole) << "steps of " << chunk;
  }

  // The engine holds what the planner says, after every step.
  static void check_kv(const Model& m, const KvFormat& format, size_t window) {
    const std::unique_ptr<KvDevice> device = make_cpu_device();
    const KvPlanner planner = *KvPlanner::create(m.geometry(), format);
    auto reader = *Evaluator::create(m, *device, format, {kGiB}, kThreads);
    const std::vector<int32_t> tokens = random_tokens(4 * window + 5, m.n_vocab(), 3);
    for (size_t at = 0; at < tokens.size();) {
      const size_t step = std::min<size_t>(at < 3 * window ? 23 : 1, tokens.size() - at);
      ASSERT_TRUE(reader->append(std::span(tokens).subspan(at, step), {}).ok());
      at += step;
      const KvPlan plan = planner.plan({.tokens = static_cast<int64_t>(at), .ubatch = 23});
      EXPECT_EQ(reader->cache().usage().global, plan.global) << at;
      EXPECT_EQ(reader->cache().usage().local, plan.local) << at;
    }
  }

  // Positions of a whole conversation moved by seq_add: the logits of what follows stay.
  static void check_shift(const Model& m, const KvFormat& format, size_t window) {
    const std::unique_ptr<KvDevice> device = make_cpu_device();
    const std::vector<int32_t> tokens = random_tokens(3 * window + 5, m.n_vocab(), 5);
    const size_t n_before = 2 * window + 3;
    const std::vector<float> whole = weir_logits(m, format, kThreads, tokens, tokens.size());
    auto reader = *Evaluator::create(m, *device, format, {kGiB}, kThreads);
    ASSERT_TRUE(reader->read(std::span(tokens).first(n_before), 64, false, {}).ok());
    const Status moved = reader->cache().seq_add(reader->sequence(), 0, -1, 1000, m.key_rotator());
    ASSERT_TRUE(moved.ok()) << moved.message();
    std::vector<float> after;
    ASSERT_TRUE(reader
                    ->read(std::span(tokens).subspan(n_before), 7, true,
                           [&](int64_t, std::span<const float> rows) {
                             after.insert(after.end(), rows.begin(), rows.end());
                           })
                    .ok());
    const auto width = static_cast<size_t>(m.n_vocab());
    const LogitsDifference d =
        compare(after, std::span(whole).subspan(n_before * width), m.n_vocab());
    std::printf("%-23s shifted by 1000: nmse %.1e\n", "", d.nmse);
    // The library's angles are f32: at position 1000 they are off by up to 6e-5.
    EXPECT_LE(d.nmse, 1e-6);
  }

 private:
  inline static std::filesystem::path folder_;
  inline static std::map<std::string, std::unique_ptr<Model>> models_;
  inline static std::map<std::string, std::unique_ptr<LlamaPeer>> peers_;
};

}  // namespace weir

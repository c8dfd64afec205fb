// What quantized KV does to a trained model's predictions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "engine/evaluator.h"
#include "engine/testing/tiny_engine.h"
#include "engine/text_quality.h"
#include "oracle/llama_peer.h"

namespace weir {
namespace {

constexpr int64_t kWindow = 512;

// Held-out prose, from its beginning.
std::vector<Token> held_out(size_t bytes) {
  std::ifstream file(WEIR_SOURCE_DIR "/models/weir-tiny/heldout.txt");
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  EXPECT_TRUE(file.good());
  return *Tokenizer(tiny_model().vocab()).tokenize(text, true, false);
}

KvFormat format_of(KvType type, KvRotation rotation = KvRotation::automatic) {
  KvFormat format = KvFormat::uniform(type, 16);
  format.rotation = rotation;
  return format;
}

std::unique_ptr<Evaluator> evaluator_of(const KvFormat& format) {
  return *Evaluator::create(tiny_model(), cpu_device(), format, {64 * kMiB}, 1);
}

TokenReader reader_of(Evaluator& evaluator) {
  return [&evaluator](auto tokens, auto rows) { return evaluator.append(tokens, rows); };
}

// 2,800 predicted tokens, the same for every type: their text's own spread cancels.
TEST(KvQuality, PerplexityStaysWithinTheLimits) {
  const std::vector<std::pair<const char*, KvFormat>> formats = {
      {"f32", format_of(KvType::f32)},
      {"f16", format_of(KvType::f16)},
      {"q8_0", format_of(KvType::q8_0)},
      {"q6_0", format_of(KvType::q6_0)},
      {"q5_0", format_of(KvType::q5_0)},
      {"q4_0", format_of(KvType::q4_0)},
      {"q5_0 unrotated", format_of(KvType::q5_0, KvRotation::off)},
      {"q4_0 unrotated", format_of(KvType::q4_0, KvRotation::off)}};
  std::vector<std::unique_ptr<Evaluator>> evaluators;
  std::vector<TokenReader> readers;
  for (const auto& [name, format] : formats) {
    evaluators.push_back(evaluator_of(format));
    readers.push_back(reader_of(*evaluators.back()));
  }
  TextQuality quality(readers, static_cast<size_t>(tiny_model().n_vocab()));
  const std::vector<Token> tokens = held_out(24000);
  for (size_t at = 0; at + kWindow <= tokens.size(); at += kWindow) {
    for (const auto& e : evaluators) e->clear();
    ASSERT_TRUE(quality.read_window(std::span(tokens).subspan(at, kWindow), kWindow).ok());
  }
  ASSERT_GT(quality.of(0).surprise.count, 2500);
  std::vector<double> perplexity, divergence;
  for (size_t i = 0; i < formats.size(); ++i) {
    perplexity.push_back(quality.of(i).surprise.perplexity());
    divergence.push_back(quality.of(i).from_first.mean());
    std::printf("%-15s perplexity %.4f  divergence %.3g  same likeliest %.4f\n", formats[i].first,
                perplexity[i], divergence[i], quality.of(i).from_first.agreement());
  }
  const auto change = [&](size_t i) { return std::abs(perplexity[i] / perplexity[1] - 1); };
  EXPECT_LT(change(2), 0.001);
  EXPECT_LT(change(3), 0.005);
  // Fewer bits are farther from f32, and rotation helps where it is the default.
  EXPECT_TRUE(std::is_sorted(divergence.begin(), divergence.begin() + 6));
  EXPECT_LT(divergence[4], divergence[6]);
  EXPECT_LT(divergence[5], divergence[7]);
  EXPECT_LT(change(5), change(7));
}

// Normalized squared distance of two readers' logits.
struct Distance {
  double error = 0, power = 0;
  void add(std::span<const float> expected, std::span<const float> logits) {
    double mean = 0;
    for (const float x : expected) mean += x;
    mean /= static_cast<double>(expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(double{logits[i]} - expected[i], 2);
      power += std::pow(expected[i] - mean, 2);
    }
  }
  double nmse() const { return error / power; }
};

// Both engines round keys and values to the same 8 bits; llama.cpp rounds queries too, so weir may
// not be farther from f32 than llama.cpp is (a tenth for chance). From each other they are as far
// as two independent errors: the sum of their squares, and at most the square of their sum.
TEST(KvQuality, EightBitsCostWhatTheyCostLlamaCpp) {
  const std::vector<Token> all = held_out(6000);
  ASSERT_GT(std::ssize(all), 1024);
  const std::span<const Token> tokens = std::span(all).first(1024);
  const auto exact = evaluator_of(format_of(KvType::f32));
  const auto weir = evaluator_of(format_of(KvType::q8_0));
  PeerOptions options;
  options.context = 1024;
  options.max_outputs = kWindow;
  options.kv_type_k = options.kv_type_v = "q8_0";
  const auto peer = LlamaPeer::load(tiny_model().path(), options);
  ASSERT_TRUE(peer.ok());
  const auto n_vocab = static_cast<size_t>(tiny_model().n_vocab());
  Distance ours, theirs, apart;
  std::vector<int32_t> rows(kWindow);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
  std::vector<float> peer_logits(rows.size() * n_vocab);
  for (size_t at = 0; at < tokens.size(); at += kWindow) {
    const auto step = tokens.subspan(at, kWindow);
    const auto truth = *exact->append(step, rows), logits = *weir->append(step, rows);
    ASSERT_TRUE((*peer)->evaluate(step, rows, peer_logits).ok());
    ours.add(truth, logits);
    theirs.add(truth, peer_logits);
    apart.add(peer_logits, logits);
  }
  std::printf("NMSE to f32 KV: weir %.3g, llama.cpp %.3g; apart %.3g\n", ours.nmse(), theirs.nmse(),
              apart.nmse());
  EXPECT_GT(ours.nmse(), 1e-7);  // it is quantized
  EXPECT_LT(ours.nmse(), 1.1 * theirs.nmse());
  EXPECT_LT(apart.nmse(), std::pow(std::sqrt(ours.nmse()) + std::sqrt(theirs.nmse()), 2));
}

}  // namespace
}  // namespace weir

#include "engine/text_quality.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weir {
namespace {

// Logits of given probabilities, shifted by a constant, which changes nothing.
std::vector<float> logits_of(const std::vector<double>& p, double shift = 0) {
  std::vector<float> logits;
  for (const double x : p) logits.push_back(static_cast<float>(std::log(x) + shift));
  return logits;
}

TEST(TextQuality, SurpriseIsTheLogarithmOfTheProbability) {
  Surprise s;
  s.add(logits_of({0.5, 0.25, 0.25}, 700), 1);  // exp(700) is no float
  s.add(logits_of({0.5, 0.25, 0.25}, -90), 0);
  EXPECT_NEAR(s.perplexity(), std::sqrt(8.0), 1e-4);
  // Two samples log 4 and log 2: the mean's error is half their distance.
  EXPECT_NEAR(s.error(), std::sqrt(8.0) * std::log(2.0) / 2, 1e-4);
}

TEST(TextQuality, DivergenceIsThatOfTheDistributions) {
  Divergence d;
  d.add(logits_of({0.5, 0.25, 0.25}), logits_of({0.25, 0.5, 0.25}, 40));
  EXPECT_NEAR(d.mean(), 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-5);
  EXPECT_EQ(d.agreement(), 0);
  d.add(logits_of({0.6, 0.4}), logits_of({0.6, 0.4}, 5));
  EXPECT_NEAR(d.mean(), 0.125 * std::log(2.0), 1e-5);
  EXPECT_EQ(d.agreement(), 0.5);
}

// A window of 7: tokens 4 to 6 are predicted, from the rows of 3 to 5, whatever the steps.
TEST(TextQuality, ScoresTheSecondHalfOfAWindow) {
  const std::vector<Token> tokens = {0, 1, 2, 0, 1, 2, 0};
  for (const int64_t step : {1, 2, 3, 7, 100}) {
    std::vector<float> logits, other;
    std::vector<Token> asked;
    const auto reader = [&](std::vector<float>& memory, double other_p) -> TokenReader {
      return [&, other_p](std::span<const Token> part, std::span<const int32_t> rows) {
        memory.clear();
        for (const int32_t row : rows) {
          asked.push_back(part[static_cast<size_t>(row)]);
          // The next token of the cycle is likely.
          std::vector<double> p(3, (1 - other_p) / 2);
          p[static_cast<size_t>(part[static_cast<size_t>(row)] + 1) % 3] = other_p;
          const auto l = logits_of(p);
          memory.insert(memory.end(), l.begin(), l.end());
        }
        return Result<std::span<const float>>(std::span<const float>(memory));
      };
    };
    TextQuality quality({reader(logits, 0.5), reader(other, 0.8)}, 3);
    ASSERT_TRUE(quality.read_window(tokens, step).ok());
    EXPECT_EQ(quality.of(0).surprise.count, 3);
    EXPECT_NEAR(quality.of(0).surprise.perplexity(), 2.0, 1e-5);
    EXPECT_NEAR(quality.of(1).surprise.perplexity(), 1.25, 1e-5);
    EXPECT_EQ(quality.of(0).from_first.mean(), 0);
    EXPECT_NEAR(quality.of(1).from_first.mean(), 0.5 * std::log(0.5 / 0.8) + 0.5 * std::log(2.5),
                1e-5);
    EXPECT_EQ(quality.of(1).from_first.agreement(), 1);
    EXPECT_EQ(std::count(asked.begin(), asked.end(), 0), 2) << step;  // once a reader: row 3
    EXPECT_EQ(asked.size(), 6u);
  }
}

TEST(TextQuality, AReadersErrorEndsTheWindow) {
  TextQuality quality({[](auto, auto) -> Result<std::span<const float>> {
                        return Status(Code::over_budget, "full");
                      }},
                      3);
  const std::vector<Token> tokens = {0, 1, 2, 0};
  EXPECT_EQ(quality.read_window(tokens, 2).code(), Code::over_budget);
}

}  // namespace
}  // namespace weir

#include "engine/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weir {
namespace {

TEST(Logprobs, AreTheLogarithmOfASoftmax) {
  // Probabilities 1/10, 2/10, 4/10, 3/10, and a constant that softmax does not see.
  std::vector<float> logits;
  for (const double p : {1.0, 2.0, 4.0, 3.0}) {
    logits.push_back(static_cast<float>(std::log(p) + 700));
  }
  const TokenLogprobs got = logprobs_of(logits, 1, 3);
  EXPECT_EQ(got.chosen.token, 1);
  EXPECT_NEAR(got.chosen.logprob, std::log(0.2), 1e-4);
  ASSERT_EQ(got.top.size(), 3u);
  EXPECT_EQ(got.top[0].token, 2);
  EXPECT_NEAR(got.top[0].logprob, std::log(0.4), 1e-4);
  EXPECT_EQ(got.top[1].token, 3);
  EXPECT_EQ(got.top[2].token, 1);
}

TEST(Logprobs, AllOfThemSumToOne) {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(std::sin(i * 0.7) * 20);
  double sum = 0;
  for (const TokenLogprob& one : logprobs_of(logits, 0, 5000).top) sum += std::exp(one.logprob);
  EXPECT_NEAR(sum, 1, 1e-4);
}

TEST(Logprobs, EqualOnesAreOrderedAndBannedOnesAreAtTheEnd) {
  const float inf = std::numeric_limits<float>::infinity();
  const TokenLogprobs got = logprobs_of(std::vector<float>{1, -inf, 1, 1}, 1, 4);
  EXPECT_EQ(got.chosen.logprob, -inf);
  const std::vector<Token> order{0, 2, 3, 1};
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(got.top[i].token, order[i]);
}

}  // namespace
}  // namespace weir

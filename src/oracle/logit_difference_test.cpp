#include "oracle/logit_difference.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weir {
namespace {

TEST(LogitDifference, CountsErrorsAndArgmax) {
  LogitDifference d;
  d.add(std::vector<float>{3, 4}, std::vector<float>{3, 4});
  EXPECT_EQ(d.nmse(), 0);
  EXPECT_EQ(d.agreement(), 1);
  d.add(std::vector<float>{1, 0.75f}, std::vector<float>{1, 1.5f});
  EXPECT_EQ(d.max_abs, 0.75);
  EXPECT_DOUBLE_EQ(d.nmse(), 0.5625 / (25 + 1.5625));
  EXPECT_EQ(d.agreement(), 0.5);
  EXPECT_EQ(d.differing_beyond(0.2), 1);
  EXPECT_EQ(d.differing_beyond(0.25), 0);
}

// A NaN must never look like agreement.
TEST(LogitDifference, NanIsInfinitelyFar) {
  for (const auto& [reference, other] : {std::pair{2.0f, NAN}, std::pair{NAN, 2.0f},
                                         std::pair{NAN, NAN}, std::pair{HUGE_VALF, 2.0f}}) {
    LogitDifference d;
    d.add(std::vector<float>{1, reference}, std::vector<float>{1, other});
    EXPECT_EQ(d.max_abs, HUGE_VAL) << reference << " and " << other;
    EXPECT_EQ(d.nmse(), HUGE_VAL) << reference << " and " << other;
  }
}

}  // namespace
}  // namespace weir

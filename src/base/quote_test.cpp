#include "base/quote.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(Quote, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(quote("general.architecture"), "'general.architecture'");
  EXPECT_EQ(quote("a\nb\x7f"), "'a\\x0ab\\x7f'");
  EXPECT_EQ(quote("caf\xc3\xa9"), "'caf\xc3\xa9'");
  EXPECT_EQ(quote("\xc3"), "'\\xc3'");
  EXPECT_EQ(quote("\xed\xa0\x80"), "'\\xed\\xa0\\x80'");
}

TEST(Quote, CutsWhatIsLong) {
  EXPECT_EQ(quote(std::string(200, 'x')).size(), 2 + 80 + 3u);
  EXPECT_EQ(printable("abc", 2), "ab...");
}

}  // namespace
}  // namespace weir

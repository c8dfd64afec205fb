#include "base/bytes.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(Bytes, ParsesBinaryUnits) {
  EXPECT_EQ(parse_bytes("4096")->v, 4096);
  EXPECT_EQ(parse_bytes("4096B")->v, 4096);
  EXPECT_EQ(parse_bytes("1.5GiB")->v, 1610612736);
  EXPECT_EQ(parse_bytes("64 MiB")->v, 64 * kMiB);
  EXPECT_EQ(parse_bytes("2g")->v, 2 * kGiB);
  EXPECT_EQ(parse_bytes("3kb")->v, 3 * kKiB);
}

TEST(Bytes, RefusesWhatIsNotASize) {
  for (const char* text : {"", "x", "-1", "1xb", "1kibb", "1e300", "nan", "inf", "GiB", "1 0"}) {
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
  }
}

TEST(Bytes, FormatsWithTheLargestUnitThatFits) {
  EXPECT_EQ(format_bytes({0}), "0 B");
  EXPECT_EQ(format_bytes({1023}), "1023 B");
  EXPECT_EQ(format_bytes({22 * kKiB}), "22 KiB");
  EXPECT_EQ(format_bytes({kGiB + kGiB / 4}), "1.25 GiB");
  EXPECT_EQ(format_bytes({139 * kMiB}), "139 MiB");
}

}  // namespace
}  // namespace weir

#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include <random>

namespace weir {
namespace {

TEST(TextStream, HoldsBackHalfACharacter) {
  TextStream stream({});
  EXPECT_EQ(stream.push("a\xE2\x82"), "a");
  EXPECT_EQ(stream.push("\xAC!"), "\xE2\x82\xAC!");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, WhatIsNotUtf8BecomesAReplacementCharacter) {
  TextStream stream({});
  EXPECT_EQ(stream.push("a\xFFz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(stream.push("\xE2\x28"), "\xEF\xBF\xBD(");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(valid_utf8("\xC0\xAF"), "\xEF\xBF\xBD\xEF\xBF\xBD");              // overlong
  EXPECT_EQ(valid_utf8("\xED\xA0\x80").find("\xED\xA0"), std::string::npos);  // surrogate
}

TEST(TextStream, StopStringIsNeverShownEvenInPieces) {
  TextStream stream({"\nUser:", "###"});
  EXPECT_EQ(stream.push("Hello\n"), "Hello");
  EXPECT_EQ(stream.push("Us"), "");
  EXPECT_EQ(stream.push("ual"), "\nUsual");
  EXPECT_EQ(stream.push(" ##"), " ");
  EXPECT_EQ(stream.push("# hidden"), "");
  EXPECT_TRUE(stream.is_stopped());
  EXPECT_EQ(stream.push("more"), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, EarliestOfSeveralStopStringsWins) {
  TextStream stream({"bc", "abcd"});
  EXPECT_EQ(stream.push("xabcd"), "x");
  EXPECT_TRUE(stream.is_stopped());
}

// However the bytes are cut into tokens, the text is the same.
TEST(TextStream, CutsDoNotMatter) {
  const std::string bytes = "Gr\xC3\xBC\xC3\x9F \xF0\x9F\x8C\x8A ENDE? EN EN\xE2\x82 END tail";
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    TextStream stream({"END "});
    std::string text;
    for (size_t at = 0; at < bytes.size() && !stream.is_stopped();) {
      const size_t n = 1 + random() % 5;
      text += stream.push(std::string_view(bytes).substr(at, n));
      at += n;
    }
    text += stream.finish();
    EXPECT_EQ(text, "Gr\xC3\xBC\xC3\x9F \xF0\x9F\x8C\x8A ENDE? EN EN\xEF\xBF\xBD ");
  }
}

}  // namespace
}  // namespace weir

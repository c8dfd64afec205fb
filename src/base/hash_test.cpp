// The two hashes against values published with them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/sha256.h"

namespace weir {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte b : digest) {
    text += "0123456789abcdef"[std::to_integer<int>(b >> 4)];
    text += "0123456789abcdef"[std::to_integer<int>(b & std::byte{15})];
  }
  return text;
}

// FIPS 180-2, appendix B.
TEST(Sha256, PublishedValues) {
  EXPECT_EQ(hex(sha256(bytes_of("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// RFC 3720, B.4, and the usual check value.
TEST(Crc32c, PublishedValues) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62a8ab43u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, BothWaysAgreeOnEveryLengthAndInPieces) {
  std::string text;
  for (int i = 0; i < 70; ++i) text += static_cast<char>(i * 37 + 11);
  for (size_t n = 0; n <= text.size(); ++n) {
    const auto bytes = bytes_of(text).first(n);
    EXPECT_EQ(crc32c(bytes), crc32c_portable(bytes)) << n;
    EXPECT_EQ(crc32c(bytes.subspan(n / 3), crc32c(bytes.first(n / 3))), crc32c(bytes)) << n;
  }
}

}  // namespace
}  // namespace weir

// Records of blocks: their names, their bytes, and that nothing wrong with them goes unnoticed.
#include "kv/tier_record.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kv/testing/small_store.h"

namespace weir {
namespace {

std::vector<std::byte> block_of(size_t n) {
  std::vector<std::byte> block;
  for (size_t i = 0; i < n; ++i) block.push_back(static_cast<std::byte>(i * 7 + 1));
  return block;
}

RecordHeader small_header() {
  RecordHeader header{
      .group = 1, .index = 2, .block_bytes = 8, .parent = {}, .tokens = {5, -1, 1 << 20}};
  for (size_t i = 0; i < header.parent.size(); ++i) header.parent[i] = static_cast<std::byte>(i);
  return header;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += "0123456789abcdef"[std::to_integer<int>(b >> 4)];
    text += "0123456789abcdef"[std::to_integer<int>(b & std::byte{15})];
  }
  return text;
}

TEST(TierRecord, ReadsWhatItWrites) {
  const auto block = block_of(8);
  const auto bytes = write_record_header(small_header(), block);
  EXPECT_EQ(bytes.size(), record_header_bytes(3));
  const Result<RecordHeader> read = read_record_header(bytes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, small_header());
  EXPECT_TRUE(check_record({bytes, block}, small_header()).ok());
}

// Records outlive the program that wrote them: other bytes need another version.
TEST(TierRecord, TheFormatIsThis) {
  EXPECT_EQ(hex(write_record_header(small_header(), block_of(8))),
            "774b5662"
            "01000000"
            "01000000"
            "01000000"
            "0200000000000000"
            "03000000"
            "3b2d1c91"
            "0800000000000000"
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
            "05000000"
            "ffffffff"
            "00001000");
}

TEST(TierRecord, EveryChangedBitIsNoticed) {
  auto block = block_of(8);
  auto bytes = write_record_header(small_header(), block);
  for (auto* part : {&bytes, &block}) {
    for (size_t i = 0; i < part->size() * 8; ++i) {
      (*part)[i / 8] ^= std::byte{1} << static_cast<int>(i % 8);
      EXPECT_FALSE(check_record({bytes, block}, small_header()).ok()) << i;
      (*part)[i / 8] ^= std::byte{1} << static_cast<int>(i % 8);
    }
  }
  EXPECT_TRUE(check_record({bytes, block}, small_header()).ok());
}

TEST(TierRecord, EveryTruncationIsNoticed) {
  const auto block = block_of(8);
  const auto bytes = write_record_header(small_header(), block);
  const std::span<const std::byte> all(bytes), rows(block);
  for (size_t n = 0; n < all.size(); ++n) {
    EXPECT_FALSE(check_record({all.first(n), rows}, small_header()).ok()) << n;
  }
  for (size_t n = 0; n < rows.size(); ++n) {
    EXPECT_FALSE(check_record({all, rows.first(n)}, small_header()).ok()) << n;
  }
}

// Sound, but of something else.
TEST(TierRecord, AnotherBlocksRecordIsRefused) {
  const auto block = block_of(8);
  std::vector<RecordHeader> others(5, small_header());
  others[0].group = 0;
  others[1].index = 3;
  others[2].parent[31] ^= std::byte{1};
  others[3].tokens[1] = 7;
  others[4].tokens.push_back(1);
  for (const RecordHeader& other : others) {
    const auto bytes = write_record_header(other, block);
    EXPECT_TRUE(check_record({bytes, block}, other).ok());
    EXPECT_EQ(check_record({bytes, block}, small_header()).code(), Code::corrupt);
  }
}

TEST(TierRecord, AnotherVersionIsUnsupported) {
  for (const size_t at : {size_t{4}, size_t{8}}) {
    auto bytes = write_record_header(small_header(), block_of(8));
    bytes[at] = std::byte{9};
    EXPECT_EQ(read_record_header(bytes).status().code(), Code::unsupported);
  }
}

// Whatever rows depend on is in the name.
TEST(TierNames, DifferWhereRowsWould) {
  std::set<Digest> names;
  const KvLayout layout = fingerprint_layout(4, std::vector{kGlobal, sliding(5)});
  names.insert(root_name(layout, "model", "salt"));
  EXPECT_FALSE(names.insert(root_name(layout, "model", "salt")).second);
  EXPECT_TRUE(names.insert(root_name(layout, "models", "alt")).second);
  EXPECT_TRUE(names.insert(root_name(layout, "model", "")).second);
  EXPECT_TRUE(names.insert(root_name(layout, "", "salt")).second);
  std::vector<KvLayout> others(6, layout);
  others[0].groups[1].retention.window = 6;
  others[1].groups[0].k_type = KvType::f16;
  others[2].groups[0].v_rotated = true;
  others[3].groups[0].layers[0].layer = 9;
  others[4].format.block_tokens = 8;
  others[5].groups.pop_back();
  for (const KvLayout& other : others) {
    EXPECT_TRUE(names.insert(root_name(other, "model", "salt")).second);
  }
}

TEST(TierNames, ChainOverFullBlocks) {
  const Digest root = sha256({});
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<Digest> names = chain_names(root, tokens, 3);
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names[0], name_after(root, std::span(tokens).first(3)));
  EXPECT_EQ(names[1], name_after(names[0], std::span(tokens).subspan(3, 3)));
  // The same tokens after others are another block.
  EXPECT_NE(chain_names(root, std::vector{1, 2, 3, 1, 2, 3}, 3)[1], names[0]);
}

}  // namespace
}  // namespace weir

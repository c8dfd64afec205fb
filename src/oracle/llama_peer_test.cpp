#include "oracle/llama_peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace weir {
namespace {

const std::string kTiny = std::string(WEIR_SOURCE_DIR) + "/models/weir-tiny/weir-tiny-f16.gguf";

TEST(LlamaPeer, KvBytesAreTheBuffersThatTheCacheAllocates) {
  // weir-tiny: 2 global and 10 local layers of 2 heads of 64, window 128. Local layers get
  // min(context, window + step) cells, rounded up to 256.
  PeerOptions options;
  options.context = 1024;
  options.step_tokens = 100;
  auto peer = LlamaPeer::load(kTiny, options);
  ASSERT_TRUE(peer.ok()) << peer.error().message();
  const int64_t cell = 2 * (2 * 64) * 2;
  EXPECT_EQ((*peer)->kv_bytes().v, 2 * 1024 * cell + 10 * 256 * cell);
}

TEST(LlamaPeer, LogitsAreThoseOfTheRowsAskedFor) {
  PeerOptions options;
  options.kv_type_k = options.kv_type_v = "f32";
  auto peer = LlamaPeer::load(kTiny, options);
  ASSERT_TRUE(peer.ok()) << peer.error().message();
  const std::vector<int32_t> tokens = {2, 300, 301, 302, 303};
  const auto width = static_cast<size_t>((*peer)->n_vocab());
  std::vector<float> two(2 * width), last(width);
  const int32_t rows[] = {1, 4};
  ASSERT_TRUE((*peer)->evaluate(tokens, rows, two).ok());
  EXPECT_EQ((*peer)->n_tokens(), 5);
  auto again = (*peer)->reopen(options);
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE((*again)->evaluate(tokens, std::span(rows).subspan(1), last).ok());
  float worst = 0;
  for (size_t i = 0; i < width; ++i) worst = std::max(worst, std::abs(two[width + i] - last[i]));
  EXPECT_LT(worst, 1e-3f);
}

TEST(LlamaPeer, RefusesWithOneLine) {
  PeerOptions options;
  options.kv_type_k = "q6_0";
  auto peer = LlamaPeer::load(kTiny, options);
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.error().code(), Code::invalid_input);
  peer = LlamaPeer::load("no-such-file.gguf", {});
  ASSERT_FALSE(peer.ok());
  EXPECT_EQ(peer.error().message().find('\n'), std::string::npos);

  options = {};
  options.step_tokens = 4;
  peer = LlamaPeer::load(kTiny, options);
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ((*peer)->evaluate(std::vector<int32_t>(5, 3), {}, {}).code(), Code::invalid_input);
}

}  // namespace
}  // namespace weir

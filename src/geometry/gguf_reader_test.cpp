#include "geometry/gguf_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "geometry/gguf_geometry.h"
#include "geometry/testing/gguf_bytes.h"

namespace weir {
namespace {

using testing::HasSubstr;

GgufBytes small() {
  GgufBytes g;
  g.string("general.architecture", "gemma3").u32("gemma3.block_count", 6);
  g.u32("gemma3.attention.head_count", 4).u32("gemma3.attention.head_count_kv", 1);
  g.u32("gemma3.attention.key_length", 32).u32("gemma3.attention.value_length", 32);
  g.u32("gemma3.attention.sliding_window", 8).f32("gemma3.rope.freq_base", 1e6f);
  g.boolean("tokenizer.ggml.add_bos_token", true);
  g.strings("tokenizer.ggml.tokens", {"a", "", "long token"});
  g.i32s("numbers", {-1, 2, 3}).f32s("fractions", {0.5f, -2});
  g.tensor("token_embd.weight", {32, 3}, 8).tensor("output_norm.weight", {32});
  return g;
}

Status error_of(const GgufBytes& g) {
  const std::string bytes = g.bytes();
  return GgufFile::parse(as_bytes_of(bytes)).status();
}

TEST(GgufReader, ReadsKeysAndTensors) {
  const std::string bytes = small().bytes();
  const Result<GgufFile> file = GgufFile::parse(as_bytes_of(bytes));
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(**file->string("general.architecture"), "gemma3");
  EXPECT_EQ(**file->integer("gemma3.block_count"), 6);
  EXPECT_EQ(**file->number("gemma3.rope.freq_base"), 1e6);
  EXPECT_EQ(**file->number("gemma3.block_count"), 6.0);
  EXPECT_TRUE(**file->boolean("tokenizer.ggml.add_bos_token"));
  EXPECT_EQ(file->find("tokenizer.ggml.tokens")->count, 3u);
  EXPECT_EQ(**file->integers("numbers", 3), (std::vector<int64_t>{-1, 2, 3}));
  EXPECT_EQ(**file->numbers("numbers", 3), (std::vector<double>{-1, 2, 3}));
  EXPECT_EQ(**file->numbers("fractions", 2), (std::vector<double>{0.5, -2}));
  EXPECT_EQ(**file->numbers("gemma3.rope.freq_base", 1), (std::vector<double>{1e6}));
  EXPECT_FALSE(file->integer("absent")->has_value());

  ASSERT_EQ(file->tensors().size(), 2u);
  const GgufTensor* embd = file->find_tensor("token_embd.weight");
  ASSERT_NE(embd, nullptr);
  EXPECT_EQ(embd->bytes, 3 * 34u);
  EXPECT_EQ(embd->elements(), 96);
  EXPECT_EQ(embd->file_offset % 32, 0u);
  EXPECT_EQ(file->data(*embd).size(), embd->bytes);
  EXPECT_EQ(file->find_tensor("output_norm.weight")->file_offset, embd->file_offset + 128);
}

TEST(GgufReader, AWrongTypeNamesTheKeyAndWhatItHolds) {
  const std::string bytes = small().bytes();
  const Result<GgufFile> file = GgufFile::parse(as_bytes_of(bytes));
  const Status s = file->integer("tokenizer.ggml.tokens").status();
  EXPECT_EQ(s.code(), Code::corrupt);
  EXPECT_THAT(s.message(), HasSubstr("'tokenizer.ggml.tokens' holds an array of string"));
  EXPECT_FALSE(file->string("gemma3.block_count").ok());
  EXPECT_FALSE(file->boolean("gemma3.block_count").ok());
  EXPECT_FALSE(file->number("general.architecture").ok());
  EXPECT_FALSE(file->integers("numbers", 2).ok());
  EXPECT_FALSE(file->integers("fractions", 2).ok());
  EXPECT_FALSE(file->numbers("fractions", 1).ok());
  EXPECT_FALSE(file->numbers("tokenizer.ggml.tokens", 9).ok());
}

TEST(GgufReader, ReadsVersion2AndRefusesOthers) {
  EXPECT_TRUE(error_of(GgufBytes(2).u32("x", 1)).ok());
  EXPECT_THAT(error_of(GgufBytes(1).u32("x", 1)).message(), HasSubstr("version 1"));
  EXPECT_THAT(error_of(GgufBytes(0x03000000).u32("x", 1)).message(), HasSubstr("big-endian"));
  EXPECT_THAT(GgufFile::parse({}).error().message(), HasSubstr("not a GGUF"));
}

TEST(GgufReader, NamesTheKeyThatIsWrong) {
  const auto message = [](const GgufBytes& g) {
    const Status s = error_of(g);
    EXPECT_EQ(s.code(), Code::corrupt);
    return s.message();
  };
  EXPECT_THAT(message(GgufBytes().u32("twice", 1).u32("twice", 2)), HasSubstr("'twice'"));
  EXPECT_THAT(message(GgufBytes().raw("odd", 99, "12345678")), HasSubstr("'odd'"));
  EXPECT_THAT(message(GgufBytes().u32("general.alignment", 0)), HasSubstr("general.alignment"));
  EXPECT_THAT(message(GgufBytes().u32("general.alignment", 24)), HasSubstr("power of two"));
  EXPECT_THAT(message(GgufBytes().string("general.alignment", "x")),
              HasSubstr("general.alignment"));
  const std::string nested("\x09\0\0\0\x01\0\0\0\0\0\0\0", 12);
  EXPECT_THAT(message(GgufBytes().raw("nested", 9, nested)), HasSubstr("'nested'"));
  const std::string huge("\x04\0\0\0\xff\xff\xff\xff\xff\xff\xff\x3f", 12);
  EXPECT_THAT(message(GgufBytes().raw("huge", 9, huge)), HasSubstr("'huge'"));
  const std::string strings("\x08\0\0\0\x02\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 20);
  EXPECT_THAT(message(GgufBytes().raw("strings", 9, strings)), HasSubstr("'strings'"));
  EXPECT_THAT(message(GgufBytes().raw("", 4, "1234")), HasSubstr("key 1"));
  EXPECT_THAT(message(GgufBytes().raw("bad\nname", 77, "1234")), HasSubstr("'bad\\x0aname'"));
}

TEST(GgufReader, NamesTheTensorThatIsWrong) {
  const auto message = [](const GgufBytes& g) { return error_of(g).message(); };
  EXPECT_THAT(message(GgufBytes().tensor("t", {32}).tensor("t", {32})),
              HasSubstr("'t' appears twice"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {32, -1}, 0, 0)), HasSubstr("'t'"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {32, 0}, 0, 0)), HasSubstr("'t'"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {1LL << 40, 1LL << 40}, 0, 0)), HasSubstr("'t'"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {1LL << 62}, 0, 0)), HasSubstr("'t'"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {1, 1, 1, 1, 1}, 0, 0)),
              HasSubstr("5 dimensions"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {33}, 8, 0)), HasSubstr("multiple of 32"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {32}, 4, 0)), HasSubstr("type number 4"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {32}, 43, 0)), HasSubstr("type number 43"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {32}, 0, 0)), HasSubstr("outside the file"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {32}, 0, ~0ull - 31)), HasSubstr("outside"));
  EXPECT_THAT(message(GgufBytes().tensor_at("t", {32}, 0, 8)), HasSubstr("alignment"));
  EXPECT_THAT(message(GgufBytes().tensor("a", {32}).tensor_at("b", {16}, 0, 64)),
              HasSubstr("'b' overlaps that of 'a'"));
}

TEST(GgufReader, EveryTruncationIsCorrupt) {
  const std::string bytes = small().bytes();
  const Result<GgufFile> whole = GgufFile::parse(as_bytes_of(bytes));
  // The last tensor's data needs no padding behind it.
  const GgufTensor& last = whole->tensors().back();
  for (size_t n = 0; n < last.file_offset + last.bytes; ++n) {
    const Result<GgufFile> file = GgufFile::parse(as_bytes_of(bytes).first(n));
    ASSERT_FALSE(file.ok()) << n;
    EXPECT_EQ(file.error().code(), Code::corrupt) << n;
    EXPECT_EQ(file.error().message().find('\n'), std::string::npos) << n;
  }
  const Status s = GgufFile::parse(as_bytes_of(bytes).first(last.file_offset + 1)).status();
  EXPECT_THAT(s.message(), HasSubstr("'output_norm.weight'"));
}

TEST(GgufReader, EveryChangedByteEndsInAValueOrOneLine) {
  const std::string good = small().bytes();
  for (size_t at = 0; at < good.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(value);
      const Result<GgufFile> file = GgufFile::parse(as_bytes_of(bytes));
      if (!file.ok()) {
        ASSERT_EQ(file.error().message().find('\n'), std::string::npos) << at << " " << value;
        continue;
      }
      const Result<KvGeometry> geometry = geometry_from_gguf(*file);
      if (!geometry.ok()) {
        ASSERT_EQ(geometry.error().message().find('\n'), std::string::npos) << at << " " << value;
      }
    }
  }
}

TEST(GgufReader, OpenNamesTheFile) {
  const Status s = GgufFile::open("/nonexistent/model.gguf").status();
  EXPECT_EQ(s.code(), Code::not_found);
  EXPECT_THAT(s.message(), HasSubstr("/nonexistent/model.gguf"));
  EXPECT_EQ(GgufFile::open("/").status().code(), Code::invalid_input);
  const std::string path = WEIR_SOURCE_DIR "/models/weir-tiny/weir-tiny-q8_0.gguf";
  const Result<GgufFile> tiny = GgufFile::open(path);
  ASSERT_TRUE(tiny.ok()) << tiny.error().message();
  EXPECT_FALSE(tiny->tensors().empty());
  EXPECT_EQ(GgufFile::open(WEIR_SOURCE_DIR "/CMakeLists.txt").status().code(), Code::corrupt);
}

}  // namespace
}  // namespace weir

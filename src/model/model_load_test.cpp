#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "llama.h"
#include "model/families/family.h"
#include "model/model.h"
#include "model/testing/small_model.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using testing::read_file;
using testing::small_model;
using testing::TemporaryFolder;
using testing::write_file;

const std::string kTiny = std::string(WEIR_SOURCE_DIR) + "/models/weir-tiny/weir-tiny-f16.gguf";

class ModelLoad : public ::testing::Test {
 protected:
  void SetUp() override { bytes_ = read_file(small_model(folder_)); }

  // The error of loading `bytes`: one line that names the file.
  Status error_of(const std::string& bytes) {
    const std::string path = folder_.file("changed.gguf");
    write_file(path, bytes);
    Result<std::unique_ptr<Model>> model = Model::load(path, {});
    if (model.ok()) return {};
    EXPECT_THAT(model.error().message(), HasSubstr(path));
    EXPECT_EQ(model.error().message().find('\n'), std::string::npos);
    return model.error();
  }

  // The file with the `n`th occurrence of `from` (counted from 0) turned into `to` of equal length.
  std::string with(const std::string& from, const std::string& to, int n = 0) const {
    EXPECT_EQ(from.size(), to.size());
    size_t at = bytes_.find(from);
    for (; n > 0 && at != std::string::npos; --n) at = bytes_.find(from, at + 1);
    EXPECT_NE(at, std::string::npos) << from;
    std::string changed = bytes_;
    return at == std::string::npos ? changed : changed.replace(at, from.size(), to);
  }

  // The file with `value` in place of what lies `offset` bytes after the end of `name`.
  template <typename T>
  std::string with_value(const std::string& name, size_t offset, T value) const {
    const size_t at = bytes_.find(name);
    EXPECT_NE(at, std::string::npos) << name;
    std::string changed = bytes_;
    std::memcpy(changed.data() + at + name.size() + offset, &value, sizeof value);
    return changed;
  }

  TemporaryFolder folder_;
  std::string bytes_;
};

TEST_F(ModelLoad, TellsWhatItLoaded) {
  write_file(folder_.file("whole.gguf"), bytes_);
  float last = -1;
  ModelOptions options;
  options.progress = [&](float part) {
    EXPECT_GE(part, last);
    last = part;
  };
  Result<std::unique_ptr<Model>> model = Model::load(folder_.file("whole.gguf"), options);
  ASSERT_TRUE(model.ok()) << model.error().message();
  EXPECT_FLOAT_EQ(last, 1.0f);
  EXPECT_EQ((*model)->n_vocab(), 400);
  EXPECT_EQ((*model)->n_embd(), 64);
  EXPECT_EQ((*model)->geometry().layers.size(), 7u);
  EXPECT_EQ((*model)->weight_bytes().v, (*model)->n_params() * 4);
  EXPECT_THAT((*model)->description(), HasSubstr("gemma3"));
  EXPECT_EQ(llama_vocab_n_tokens((*model)->vocab()), 400);
}

TEST_F(ModelLoad, MappedAndCopiedWeightsAreTheSameModel) {
  ModelOptions mapped;
  mapped.huge_pages = false;
  Result<std::unique_ptr<Model>> a = Model::load(kTiny, {}), b = Model::load(kTiny, mapped);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ((*a)->n_params(), (*b)->n_params());
  EXPECT_EQ((*a)->weight_bytes(), (*b)->weight_bytes());
}

TEST_F(ModelLoad, AFileThatIsNotThere) {
  Result<std::unique_ptr<Model>> model = Model::load(folder_.file("none.gguf"), {});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code(), Code::not_found);
}

TEST_F(ModelLoad, EveryTruncationOfWeirTinyIsCorrupt) {
  const std::string whole = read_file(kTiny);
  std::vector<size_t> lengths;
  for (size_t n = 0; n < 200; ++n) lengths.push_back(n);
  for (size_t n = 200; n < 200'000; n += 1999) lengths.push_back(n);
  for (size_t n = 200'000; n < whole.size(); n += whole.size() / 40) lengths.push_back(n);
  lengths.push_back(whole.size() - 1);
  for (size_t length : lengths) {
    const Status status = error_of(whole.substr(0, length));
    ASSERT_TRUE(status.code() == Code::corrupt || status.code() == Code::invalid_input)
        << length << ": " << status.message();
  }
}

TEST_F(ModelLoad, MissingTensorsAreNamed) {
  for (const char* name : {"token_embd", "output_norm", "blk.0.attn_norm", "blk.3.attn_q.",
                           "blk.6.attn_k_norm", "blk.5.ffn_down", "blk.2.post_ffw_norm"}) {
    std::string other = name;
    other.back() = other.back() == 'x' ? 'y' : 'x';
    const Status status = error_of(with(name, other));
    EXPECT_EQ(status.code(), Code::not_found) << name;
    EXPECT_THAT(status.message(), HasSubstr(std::string("tensor ") + name));
  }
}

TEST_F(ModelLoad, MisshapenTensorsAreNamedWithBothShapes) {
  // After a tensor's name: u32 dimensions, then u64 extents. The same bytes, read another way.
  const std::string name = "blk.4.ffn_gate.weight";
  std::string changed = with_value<uint64_t>(name, 4, 96);
  const size_t at = changed.find(name) + name.size() + 12;
  const uint64_t rows = 64;
  std::memcpy(changed.data() + at, &rows, sizeof rows);
  const Status status = error_of(changed);
  EXPECT_EQ(status.code(), Code::corrupt);
  EXPECT_THAT(status.message(), HasSubstr("tensor blk.4.ffn_gate.weight has the shape [96, 64]; "
                                          "expected [64, 96]"));
}

TEST_F(ModelLoad, TensorTypesThatCannotBeUsedAreNamed) {
  // i32 has the size of f32.
  constexpr uint32_t kI32 = 26;
  Status status = error_of(with_value<uint32_t>("blk.4.ffn_gate.weight", 4 + 16, kI32));
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_THAT(status.message(), HasSubstr("tensor blk.4.ffn_gate.weight has type i32"));
  status = error_of(with_value<uint32_t>("blk.1.ffn_norm.weight", 4 + 8, kI32));
  EXPECT_THAT(status.message(), HasSubstr("tensor blk.1.ffn_norm.weight has type i32"));
  status = error_of(with_value<uint32_t>("token_embd.weight", 4 + 16, kI32));
  EXPECT_THAT(status.message(), HasSubstr("tensor token_embd.weight has type i32"));
}

TEST_F(ModelLoad, AnUnknownArchitectureIsNamedWithThoseKnown) {
  // The first "gemma3" is the value of general.architecture.
  const Status status = error_of(with("gemma3", "gemma9"));
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_THAT(status.message(), HasSubstr("gemma9"));
  EXPECT_THAT(status.message(), HasSubstr(family_names()));
}

TEST_F(ModelLoad, MissingKeysAreNamed) {
  for (const char* key :
       {"gemma3.embedding_length", "gemma3.feed_forward_length", "gemma3.block_count",
        "gemma3.attention.head_count", "gemma3.attention.layer_norm_rms_epsilon",
        "general.architecture", "tokenizer.ggml.tokens", "tokenizer.ggml.model"}) {
    std::string other = key;
    other.back() = 'X';
    const Status status = error_of(with(key, other));
    EXPECT_FALSE(status.ok()) << key;
    EXPECT_THAT(status.message(), HasSubstr(key));
  }
}

TEST_F(ModelLoad, KeysOutOfRangeAreNamed) {
  // After a key: u32 type, then the value.
  for (const auto& [key, value] :
       {std::pair{"gemma3.attention.layer_norm_rms_epsilon", -1.0f},
        std::pair{"gemma3.rope.freq_base", 0.0f}, std::pair{"gemma3.rope.freq_base", NAN},
        std::pair{"gemma3.rope.freq_base_swa", -INFINITY}}) {
    const Status status = error_of(with_value<float>(key, 4, value));
    EXPECT_EQ(status.code(), Code::corrupt) << key;
  }
  EXPECT_THAT(error_of(with_value<uint32_t>("gemma3.embedding_length", 4, 65)).message(),
              HasSubstr("token_embd.weight"));
}

TEST_F(ModelLoad, AVocabularyThatLibllamaWouldAbortOnIsRefused) {
  // The same token twice.
  Status status = error_of(with("<end_of_turn>", "<end_of_turx>"));
  EXPECT_TRUE(status.ok()) << status.message();
  status = error_of(with("<0x41>", "<0x42>"));
  EXPECT_EQ(status.code(), Code::corrupt);
  EXPECT_THAT(status.message(), HasSubstr("'<0x42>' twice"));
  status = error_of(with("<0x41>", "<0x4X>"));
  EXPECT_THAT(status.message(), HasSubstr("no token for the byte <0x41>"));
}

TEST_F(ModelLoad, ChangedBytesNeverCrash) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const size_t header = bytes_.find("output_norm.weight") + 64;
  int loaded = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string changed = bytes_;
    for (unsigned k = 0; k <= random() % 3; ++k)
      changed[random() % header] = static_cast<char>(random());
    loaded += error_of(changed).ok();
  }
  EXPECT_LT(loaded, 1500);
}

TEST(Families, AreFoundByArchitecture) {
  ASSERT_NE(find_family("gemma3"), nullptr);
  EXPECT_STREQ(find_family("gemma3")->arch, "gemma3");
  EXPECT_EQ(find_family("gemma"), nullptr);
  EXPECT_EQ(find_family(""), nullptr);
  EXPECT_THAT(family_names(), HasSubstr("gemma3"));
}

}  // namespace
}  // namespace weir

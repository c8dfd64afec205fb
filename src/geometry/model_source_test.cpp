#include "geometry/model_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "geometry/testing/gguf_bytes.h"

namespace weir {
namespace {

using testing::HasSubstr;

class ModelSourceTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "/weir-model-source-" + std::to_string(getpid());
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string message(const std::string& argument) {
    const Result<ModelSource> source = open_model_source(argument);
    return source ? "no error" : source.error().message();
  }
  std::string directory_;
};

TEST_F(ModelSourceTest, TakesIdsFilesAndDirectories) {
  const Result<ModelSource> builtin = open_model_source("gemma-3-4b");
  ASSERT_TRUE(builtin.ok());
  EXPECT_EQ(builtin->label, "gemma-3-4b");
  EXPECT_EQ(builtin->facts->id, "gemma-3-4b");

  const std::string gguf = write("weights.bin", gguf_like(*builtin->facts).bytes());
  const Result<ModelSource> from_gguf = open_model_source(gguf);
  ASSERT_TRUE(from_gguf.ok()) << from_gguf.error().message();
  EXPECT_EQ(from_gguf->kind, ModelSource::Kind::gguf);
  EXPECT_EQ(from_gguf->label, "Gemma 3 4B");
  EXPECT_EQ(from_gguf->geometry.layers, builtin->geometry.layers);

  const std::string config = R"( {"model_type": "llama", "num_hidden_layers": 2,
      "num_attention_heads": 2, "hidden_size": 64})";
  write("config.json", config);
  for (const std::string& path : {directory_, directory_ + "/", directory_ + "/config.json"}) {
    const Result<ModelSource> from_config = open_model_source(path);
    ASSERT_TRUE(from_config.ok()) << from_config.error().message();
    EXPECT_EQ(from_config->kind, ModelSource::Kind::hf_config);
    EXPECT_THAT(from_config->label, HasSubstr("weir-model-source"));
  }
}

TEST_F(ModelSourceTest, SaysWhatIsWrong) {
  EXPECT_THAT(message("gemma-3-27"), HasSubstr("gemma-3-27b"));
  EXPECT_THAT(message("nowhere/model.gguf"), HasSubstr("there is no file"));
  EXPECT_THAT(message(directory_), HasSubstr("has no config.json"));
  EXPECT_THAT(message(write("a.txt", "hello")), HasSubstr("neither a GGUF file nor"));
  EXPECT_THAT(message(write("empty", "")), HasSubstr("neither"));
  EXPECT_THAT(message(write("cut.gguf", "GGUF\3")), HasSubstr("cut.gguf': the file ends"));
  EXPECT_THAT(message(write("b.json", "{")), HasSubstr("b.json': not valid JSON"));
  const std::string pipe = directory_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(message(pipe), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace weir

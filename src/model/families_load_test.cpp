// What every family does with a damaged file: one line that names the tensor or key, no crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "geometry/gguf_reader.h"
#include "model/families/family.h"
#include "model/model.h"
#include "model/testing/small_family.h"
#include "model/testing/small_model.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

// One catalog model for each architecture that weir runs.
std::vector<std::string> one_of_each() {
  std::vector<std::string> ids;
  std::set<std::string> seen;
  for (const ModelFacts& m : builtin_models())
    if (find_family(m.gguf_arch) && seen.insert(m.gguf_arch).second) ids.push_back(m.id);
  return ids;
}

class DamagedFamily : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    // As many layers as the longest period, so that there are both kinds.
    const ModelFacts facts = small_family(GetParam(), 6);
    arch_ = facts.gguf_arch;
    SynthOptions options;
    options.weights = "f32";
    options.n_vocab = 400;
    const std::string path = folder_.file("whole.gguf");
    Result<SynthSummary> summary = synthesize(facts, options, path);
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    bytes_ = read_file(path);
    Result<GgufFile> file = GgufFile::open(path);
    ASSERT_TRUE(file.ok());
    file_.emplace(std::move(*file));
    ASSERT_TRUE(error_of(bytes_).ok()) << error_of(bytes_).message();
  }

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

  void expect_a_model_or_one_line(const std::string& bytes) { (void)error_of(bytes); }

  // Where the header has `name` as a string of its own: a length of 8 bytes in front.
  size_t find_name(const std::string& name) const {
    std::string entry(8, '\0');
    const uint64_t length = name.size();
    std::memcpy(entry.data(), &length, sizeof length);
    const size_t at = bytes_.find(entry + name);
    EXPECT_NE(at, std::string::npos) << name;
    return at + entry.size();
  }
  // The file in which `name` has become another name.
  std::string without(const std::string& name) const {
    std::string changed = bytes_;
    char& letter = changed[find_name(name) + name.size() - 1];
    letter = letter == '~' ? '!' : '~';
    return changed;
  }
  template <typename T>
  std::string with_value_after(const std::string& name, size_t offset, T value) const {
    std::string changed = bytes_;
    std::memcpy(changed.data() + find_name(name) + name.size() + offset, &value, sizeof value);
    return changed;
  }

  TemporaryFolder folder_;
  std::string arch_, bytes_;
  std::optional<GgufFile> file_;
};

// Without them the model is another one, but one that runs.
bool is_optional(const std::string& tensor) {
  return tensor == "output.weight" || tensor.starts_with("rope_f") || tensor.ends_with(".bias");
}

TEST_P(DamagedFamily, EveryMissingTensorIsNamed) {
  for (const GgufTensor& tensor : file_->tensors()) {
    const Status status = error_of(without(tensor.name));
    if (status.ok() && is_optional(tensor.name)) continue;
    EXPECT_FALSE(status.ok()) << tensor.name;
    EXPECT_THAT(status.message(), HasSubstr("tensor "));
    if (is_optional(tensor.name)) continue;
    // A part that is missing may be looked for under its other name.
    const std::string block = tensor.name.substr(0, tensor.name.find('.', 4) + 1);
    EXPECT_THAT(status.message(), HasSubstr(block)) << tensor.name;
  }
}

TEST_P(DamagedFamily, EveryMisshapenTensorIsNamed) {
  for (const GgufTensor& tensor : file_->tensors()) {
    if (tensor.shape[0] < 2) continue;
    // After a tensor's name: u32 dimensions, then u64 extents. Rows of half the length; twice as
    // many of them where there are several.
    std::string changed =
        with_value_after<uint64_t>(tensor.name, 4, static_cast<uint64_t>(tensor.shape[0] / 2));
    if (tensor.n_dims > 1) {
      const uint64_t rows = static_cast<uint64_t>(tensor.shape[1]) * 2;
      std::memcpy(changed.data() + find_name(tensor.name) + tensor.name.size() + 12, &rows,
                  sizeof rows);
    }
    const Status status = error_of(changed);
    EXPECT_FALSE(status.ok()) << tensor.name;
    EXPECT_THAT(status.message(), HasSubstr(tensor.name));
  }
}

// Whatever a key says, loading ends in a model or in one line.
TEST_P(DamagedFamily, KeysThatAreMissingOrWrong) {
  constexpr uint32_t kStringType = 8;
  for (const auto& [key, value] : file_->values()) {
    if (!key.starts_with(arch_ + ".")) continue;
    expect_a_model_or_one_line(without(key));
    if (value.is_array() || value.type == GgufValueType::string) continue;
    // A number that claims to be a string is a file that cannot be read on.
    EXPECT_FALSE(error_of(with_value_after<uint32_t>(key, 0, kStringType)).ok()) << key;
    for (const uint32_t bits : {0u, 1u, 0xffffffffu, 0x7fc00000u, 0xff800000u, 0x80000000u})
      expect_a_model_or_one_line(with_value_after<uint32_t>(key, 4, bits));
  }
  for (const char* key : {"embedding_length", "block_count", "attention.head_count"}) {
    const std::string full = arch_ + "." + key;
    EXPECT_THAT(error_of(without(full)).message(), HasSubstr(full));
  }
}

TEST_P(DamagedFamily, ChangedBytesNeverCrash) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const size_t header = file_->tensors().front().file_offset;
  for (int i = 0; i < 100; ++i) {
    std::string changed = bytes_;
    for (unsigned k = 0; k <= random() % 3; ++k)
      changed[random() % header] = static_cast<char>(random());
    expect_a_model_or_one_line(changed);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryFamily, DamagedFamily, ::testing::ValuesIn(one_of_each()),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace weir

// Synthetic models small enough to write, change and load in milliseconds.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "geometry/builtin.h"
#include "model/synth.h"

namespace weir::testing {

// A folder that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("weir-model-" + std::to_string(getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// 7 layers around one global one, window 16, heads of 32.
inline ModelFacts small_facts() {
  ModelFacts facts = **find_builtin("gemma-3-1b");
  facts.n_layers = 7;
  facts.n_embd = 64;
  facts.n_ff = 96;
  facts.n_vocab = 400;
  facts.window = 16;
  for (std::optional<LayerKindFacts>* kind : {&facts.global, &facts.local}) {
    (*kind)->n_head = 4;
    (*kind)->n_head_kv = 2;
    (*kind)->head_dim_k = (*kind)->head_dim_v = 32;
  }
  return facts;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string small_model(const TemporaryFolder& folder, const std::string& weights = "f32",
                               const ModelFacts& facts = small_facts()) {
  const std::string path = folder.file("small-" + weights + ".gguf");
  SynthOptions options;
  options.weights = weights;
  Result<SynthSummary> summary = synthesize(facts, options, path);
  EXPECT_TRUE(summary.ok()) << summary.status().message();
  return path;
}

}  // namespace weir::testing

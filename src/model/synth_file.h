#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "ggml.h"

struct gguf_context;

namespace weir {

class RandomTiles;
class SynthRandom;

// A GGUF file of random weights in the making: keys and tensors are listed first, then the file is
// streamed out. What a family's `synthesize` writes into.
class SynthFile {
 public:
  // `weights` is the type of the matrices: is_synth_type().
  SynthFile(ggml_type weights, uint64_t seed);
  ~SynthFile();
  SynthFile(const SynthFile&) = delete;
  SynthFile& operator=(const SynthFile&) = delete;

  void key(const std::string& name, uint32_t value);
  void key(const std::string& name, float value);
  void key(const std::string& name, const std::string& value);
  void flag(const std::string& name, bool value);
  void array(const std::string& name, const std::vector<uint32_t>& values);
  void array(const std::string& name, const std::vector<float>& values);
  void flags(const std::string& name, const std::vector<bool>& values);

  // y = W x: rows of `in` elements with standard deviation gain/sqrt(in): 1 keeps lengths.
  void matrix(const std::string& name, int64_t in, int64_t out, float gain = 1.0f);
  // The matrices of `n_expert` experts in one tensor.
  void experts(const std::string& name, int64_t in, int64_t out, int64_t n_expert,
               float gain = 1.0f);
  // A router's matrix, f32 as converters keep it. Its logits have deviation 4, so that the last
  // expert chosen has a small share and matters little where rounding makes it another one.
  void router(const std::string& name, int64_t in, int64_t n_expert);
  // One f32 bias vector for each expert, with standard deviation `scale`.
  void expert_biases(const std::string& name, int64_t size, int64_t n_expert, float scale = 0.1f);
  // A norm's f32 factors, near `mean`.
  void norm(const std::string& name, int64_t size, float mean = 1.0f);
  // Biases and the like: f32 numbers with this mean and standard deviation.
  void vector(const std::string& name, int64_t size, float mean, float deviation);
  // An f32 tensor of these numbers.
  void values(const std::string& name, std::vector<float> numbers);
  // Tokens, scores, special tokens and chat template for `size` tokens.
  void vocabulary(int64_t size);

  // Lines for the user: what came out other than asked.
  const std::vector<std::string>& notes() const { return notes_; }
  int64_t data_bytes() const;

  // Errors: io_error. Leaves no partial file behind. `progress` is called with 0..1.
  Status write(const std::string& path, const std::function<void(float)>& progress);

 private:
  struct Tensor {
    ggml_tensor* meta;
    bool is_vector;  // f32, drawn one by one
    float mean;
    float deviation;
    std::vector<float> values;  // instead of random numbers
  };
  ggml_type type_for(const std::string& name, int64_t in);
  Tensor& add(const std::string& name, ggml_type type, std::initializer_list<int64_t> shape);
  void fill(const Tensor& tensor, RandomTiles& tiles, SynthRandom& random, size_t done,
            std::span<std::byte> out) const;

  ggml_type weights_;
  uint64_t seed_;
  gguf_context* gguf_;
  ggml_context* context_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> notes_;
};

}  // namespace weir

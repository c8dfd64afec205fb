#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "geometry/gguf_reader.h"
#include "geometry/kv_geometry.h"
#include "model/model.h"
#include "model/weight_memory.h"

struct ggml_backend_buffer_type;
struct ggml_context;
struct ggml_tensor;

namespace weir {

// The tensors of a loaded model and the memory they lie in.
class Weights {
 public:
  Weights() = default;
  Weights(Weights&&) = default;
  Weights& operator=(Weights&&) = default;

  Bytes bytes() const { return bytes_; }  // of tensors; one that lies in memory twice counts twice
  bool uses_mapping() const { return mapped_; }  // some tensors lie in the mapped file

 private:
  friend class WeightLoader;
  struct ContextFree {
    void operator()(ggml_context* context) const;
  };
  std::unique_ptr<ggml_context, ContextFree> context_;
  std::vector<WeightMemory> memory_;
  Bytes bytes_;
  bool mapped_ = false;
};

// What a family sees of a GGUF file while it opens: it reads keys and asks for tensors by name and
// shape, and gets ggml tensors that `load` later gives their data. The first error is kept, later
// calls then return zero and null: a family asks for everything and looks at status() once.
class WeightLoader {
 public:
  // All three must outlive the loader and, if the mapping is used, the weights.
  WeightLoader(const GgufFile& file, const KvGeometry& geometry, const ModelOptions& options);
  ~WeightLoader();

  const KvGeometry& geometry() const { return geometry_; }
  const ModelOptions& options() const { return options_; }
  // Tokens of the longest conversation that the model is loaded for; 0 if nobody says.
  int64_t context() const;

  // Keys, without the architecture's prefix. Those without a default are required.
  int64_t integer(std::string_view key);
  int64_t integer(std::string_view key, int64_t otherwise);
  float number(std::string_view key);
  float number(std::string_view key, float otherwise);
  float positive(std::string_view key);  // a number above 0
  float positive(std::string_view key, float otherwise);
  bool flag(std::string_view key, bool otherwise);
  std::string text(std::string_view key, const std::string& otherwise);
  bool has_key(std::string_view key) const { return file_.find(full_key(key)) != nullptr; }
  // One value a layer, from a scalar or an array. An array may go on for draft layers.
  std::vector<int64_t> per_layer(std::string_view key);
  std::vector<int64_t> per_layer(std::string_view key, int64_t otherwise);
  // The same, of numbers that may be infinite.
  std::vector<float> numbers_per_layer(std::string_view key, float otherwise);
  std::string full_key(std::string_view key) const;

  bool has(std::string_view tensor) const { return file_.find_tensor(tensor) != nullptr; }
  // A tensor's extents as the file has them: [elements of a row, rows]; zeros if it is missing.
  int64_t row_length(std::string_view tensor) const;
  int64_t row_count(std::string_view tensor) const;

  // y = W x: `out` rows of `in` elements, of any type that can be multiplied.
  ggml_tensor* matrix(const std::string& name, int64_t in, int64_t out);
  // The matrices of `n_expert` experts in one tensor, for products that pick an expert per token.
  ggml_tensor* experts(const std::string& name, int64_t in, int64_t out, int64_t n_expert);
  // Several matrices in one tensor, in the file's own layout: for views.
  ggml_tensor* matrices(const std::string& name, int64_t in, int64_t out, int64_t n);
  // Rows that are looked up.
  ggml_tensor* table(const std::string& name, int64_t in, int64_t rows);
  // A norm or bias: f32.
  ggml_tensor* vector(const std::string& name, int64_t size);
  // One bias or factor vector for each expert: f32 [size, n_expert].
  ggml_tensor* expert_vectors(const std::string& name, int64_t size, int64_t n_expert);
  // A vector of positive numbers.
  ggml_tensor* positive_vector(const std::string& name, int64_t size);
  // The same, or null without an error if the file does not have it.
  ggml_tensor* matrix_if_present(const std::string& name, int64_t in, int64_t out);
  ggml_tensor* vector_if_present(const std::string& name, int64_t size);

  // For what else a family finds wrong.
  void fail(Code code, const std::string& what);
  const Status& status() const { return status_; }

  // Places and reads every tensor asked for. Errors: io_error if there is no memory.
  Result<Weights> load();

 private:
  struct Wanted {
    const GgufTensor* source;
    ggml_tensor* tensor;
    ggml_backend_buffer_type* extra;  // one of the CPU's extra buffer types, or null
  };
  template <typename T>
  std::vector<T> spread(std::string_view key, const Result<std::optional<std::vector<T>>>& values,
                        std::optional<T> otherwise);
  const GgufTensor* checked(const std::string& name, int64_t in, int64_t rows,
                            int64_t n_expert = 1);
  bool check_multiplied(const GgufTensor* source);
  ggml_tensor* multiplied(const GgufTensor* source, bool by_expert);
  ggml_tensor* numbers(const GgufTensor* source);
  ggml_tensor* want(const GgufTensor& source, ggml_backend_buffer_type* extra);
  ggml_backend_buffer_type* extra_type_for(const GgufTensor& source, bool by_expert);
  Status place_plain(Weights& weights);
  Status place_extra(ggml_backend_buffer_type* type, Weights& weights);
  void report(uint64_t bytes);

  const GgufFile& file_;
  const KvGeometry& geometry_;
  const ModelOptions& options_;
  std::vector<ggml_backend_buffer_type*> extra_types_;
  std::unique_ptr<ggml_context, Weights::ContextFree> context_;
  std::vector<Wanted> wanted_;
  Status status_;
  uint64_t total_bytes_ = 0, done_bytes_ = 0;
};

}  // namespace weir

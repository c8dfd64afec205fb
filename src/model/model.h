// model/: GGUF weights and the graphs of the model families, one readable file a family.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/attention_batch.h"
#include "base/bytes.h"
#include "base/status.h"
#include "geometry/kv_geometry.h"
#include "kv/kv_cache.h"

struct llama_vocab;
struct llama_model;

namespace weir {

struct ModelOptions {
  // Place matrices in the CPU's extra buffer types (AMX, repacked rows) where ggml offers them.
  bool repack = true;
  // Copy the other weights into memory with 2 MiB pages (reads are faster) instead of using the
  // mapped file (start is faster, memory is shared between processes).
  bool huge_pages = true;
  // Only products whose bits for one token do not depend on the other tokens of the step: logits
  // then depend on a token's prefix alone, however it was cut into steps and whoever ran beside
  // it. Prompts are read several times slower. Implies repack = false.
  bool exact = false;
  // Tokens of the longest conversation: models with one set of rope factors for short contexts and
  // one for long ones (longrope) take the set for this length. 0: the model's largest context.
  int64_t context = 0;
  // Rotate as llama.cpp does where weir follows the vendor instead (gpt-oss: YaRN's ramp ends,
  // rounded): to compare everything else with llama.cpp.
  bool rope_of_llama_cpp = false;
  // Called with 0..1 while loading, by one thread at a time but not always the same; may be empty.
  std::function<void(float)> progress;
};

// The weights of one model, its vocabulary and its KV geometry. Immutable after load.
class Model {
 public:
  // Errors name the file and the tensor or key: not_found, corrupt, unsupported.
  static Result<std::unique_ptr<Model>> load(const std::string& path, const ModelOptions& options);
  ~Model();

  const std::string& path() const;
  const KvGeometry& geometry() const;
  const std::string& description() const;  // "gemma3 1B Q8_0", for people
  int64_t n_vocab() const;
  int64_t n_embd() const;
  int64_t n_params() const;
  bool is_exact() const;       // loaded with ModelOptions::exact
  Bytes weight_bytes() const;  // memory that holds weights (mapped or copied)

  const llama_vocab* vocab() const;        // libllama's tokenizer of the same file
  const llama_model* vocab_model() const;  // vocabulary-only model: metadata, chat template
  const KeyRotator& key_rotator() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One step's tokens: the items of the step one after the other.
struct StepInput {
  std::span<const int32_t> tokens;
  std::span<const int64_t> positions;
  std::span<const int32_t> output_rows;  // indices into tokens whose logits are wanted, ascending
};

// Computes steps of a model: threads and compute buffers. One thread uses it at a time.
class Executor {
 public:
  Executor(const Model& model, KvDevice& device, int n_threads);
  ~Executor();

  // Runs the step's graph: stores the new rows through `step`'s tables and writes
  // output_rows.size() × n_vocab logits. The caller commits or aborts the step. Without output rows
  // only K and V are computed. Errors: invalid_input for a token, position or row out of range and
  // for lengths that do not match; cancelled; internal.
  Status compute(const StepInput& input, const KvLayout& layout, const Step& step,
                 std::span<float> logits);

  // Asks a running compute to stop early (any thread); compute then returns `cancelled`. Between
  // two computes it does nothing.
  void cancel();

  int n_threads() const;
  Bytes compute_bytes() const;  // graph and attention buffers allocated now

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir

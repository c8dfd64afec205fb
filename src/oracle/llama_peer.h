// oracle/: llama.cpp's own forward pass over the same file, in the same process: what the tests,
// `weir verify` and `weir bench --peer` compare with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace weir {

struct PeerOptions {
  int n_threads = 1;
  int64_t context = 4096;     // tokens that global layers have room for
  int64_t step_tokens = 512;  // most tokens of one forward pass (llama.cpp's ubatch)
  int64_t max_outputs = 64;   // most rows of logits of one forward pass
  std::string kv_type_k = "f16", kv_type_v = "f16";  // f32 f16 bf16 q8_0 q5_0 q4_0 ...
  bool flash_attention = true;                       // needed for a quantized V
};

// llama.cpp with a model loaded and one conversation. One thread uses it at a time. Peers made by
// `reopen` share the weights.
class LlamaPeer {
 public:
  // Reads `path`; `repack` lets llama.cpp place matrices in the CPU's extra buffer types. Errors:
  // corrupt with llama.cpp's reason, and those of reopen.
  static Result<std::unique_ptr<LlamaPeer>> load(const std::string& path,
                                                 const PeerOptions& options, bool repack = true);
  // An empty conversation over the same weights. Errors: invalid_input for a KV type llama.cpp
  // does not know, internal with llama.cpp's reason (memory, unsupported combination).
  Result<std::unique_ptr<LlamaPeer>> reopen(const PeerOptions& options) const;
  ~LlamaPeer();

  // Appends `tokens` to the conversation in one forward pass and writes the logits of
  // `output_rows` (indices into tokens, ascending): output_rows.size() × n_vocab numbers. Errors:
  // invalid_input for more than step_tokens, max_outputs or context allow; internal.
  Status evaluate(std::span<const int32_t> tokens, std::span<const int32_t> output_rows,
                  std::span<float> logits);
  void clear();  // forgets the conversation, keeps the memory

  int64_t n_vocab() const;
  int64_t n_tokens() const;  // evaluated since the start or the last clear

  // Memory that llama.cpp's KV cache holds: the buffers it has allocated, which do not depend on
  // how much of the context is used.
  Bytes kv_bytes() const;

 private:
  struct Impl;
  explicit LlamaPeer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir

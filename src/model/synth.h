#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "geometry/builtin.h"

namespace weir {

struct SynthOptions {
  std::string weights = "q8_0";  // a ggml type; norms are always f32
  int n_layers = 0;              // fewer layers than the model has, from the start; 0: all
  int64_t n_vocab = 0;           // another vocabulary size; 0: the model's
  uint64_t seed = 1;
  std::function<void(float)> progress;  // called with 0..1; may be empty
};

struct SynthSummary {
  Bytes size;                      // of the tensors
  std::vector<std::string> notes;  // one line each, for the user
};

// Writes a GGUF of random weights with a real model's exact shapes to `path`, for measuring and
// testing without the weights. Errors: unsupported for a family weir cannot write (the message
// names those it can), invalid_input for an option, io_error.
Result<SynthSummary> synthesize(const ModelFacts& facts, const SynthOptions& options,
                                const std::string& path);

}  // namespace weir

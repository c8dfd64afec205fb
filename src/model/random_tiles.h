#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ggml.h"

namespace weir {

// A small fast generator with the same numbers on every platform (splitmix64).
class SynthRandom {
 public:
  explicit SynthRandom(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // In [0, n), n > 0.
  uint64_t below(uint64_t n) { return next() % n; }
  float gaussian();

 private:
  uint64_t state_;
  float spare_ = 0;
  bool has_spare_ = false;
};

// Quantized random numbers at the speed of memcpy. A tile of gaussian blocks is quantized once per
// type and scale; matrices are pieced together from runs of it, shorter than a row, at random
// places, so that no two rows of a vocabulary come out equal.
class RandomTiles {
 public:
  explicit RandomTiles(uint64_t seed) : random_(seed) {}

  // Fills `out`, whole blocks of `type`, with numbers of standard deviation `scale`. A row of the
  // matrix has `row_blocks` blocks.
  void fill(ggml_type type, float scale, int64_t row_blocks, std::span<std::byte> out);

 private:
  const std::vector<std::byte>& tile(ggml_type type, float scale);

  SynthRandom random_;
  std::map<std::pair<ggml_type, float>, std::vector<std::byte>> tiles_;
};

// Whether random numbers can be written in this type.
bool is_synth_type(ggml_type type);

}  // namespace weir

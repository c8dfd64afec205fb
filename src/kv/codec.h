#pragma once

#include <cstddef>
#include <span>

#include "geometry/kv_type.h"

namespace weir {

// How the rows of one head lie in a K or V tile of block_tokens rows, and how floats become them.
//
// Float types: a K tile is transposed, [k_dim][block_tokens] elements, so that the lanes of a
// vector run over keys: element d of row r at index d * block_tokens + r. A V tile is
// [block_tokens][v_dim].
//
// Quantized types: 32 elements of a row share an f16 scale and take n = 32, 24, 20 or 16 bytes of
// integers (q8_0, q6_0, q5_0, q4_0; see quantized_block.h). A tile is one part for every 32
// elements of the head, [dim / 32] of
//   K: the scales [block_tokens], then the bytes transposed, [n][block_tokens];
//   V: the scales [block_tokens], then the bytes row by row, [block_tokens][n].
// Each row is quantized by itself when it is written: its bits depend on nothing beside it.
class Codec {
 public:
  virtual ~Codec() = default;

  // One row of `in.size()` or `out.size()` elements, the head's k_dim or v_dim.
  virtual void encode_k(std::byte* tile, int block_tokens, int row,
                        std::span<const float> in) const = 0;
  virtual void decode_k(const std::byte* tile, int block_tokens, int row,
                        std::span<float> out) const = 0;
  virtual void encode_v(std::byte* tile, int block_tokens, int row,
                        std::span<const float> in) const = 0;
  virtual void decode_v(const std::byte* tile, int block_tokens, int row,
                        std::span<float> out) const = 0;

  // Moves the stored bits of a row of `dim` elements; nothing is rounded again.
  virtual void copy_k(const std::byte* from_tile, int from_row, std::byte* to_tile, int to_row,
                      int block_tokens, int dim) const = 0;
  virtual void copy_v(const std::byte* from_tile, int from_row, std::byte* to_tile, int to_row,
                      int block_tokens, int dim) const = 0;
};

const Codec& codec_of(KvType type);

}  // namespace weir

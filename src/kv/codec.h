#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "geometry/kv_type.h"

namespace weir {

// How the rows of one head lie in a K or V tile of block_tokens rows, and how floats become them.
//
// Float types: a K tile is transposed, [k_dim][block_tokens] elements, so that the lanes of a
// vector run over keys: element d of row r at index d * block_tokens + r. A V tile is
// [block_tokens][v_dim].
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

// Errors: unsupported for a type that has no codec yet, naming those that have one.
Status check_codec(KvType type);

// The codec of a type that check_codec accepts.
const Codec& codec_of(KvType type);

}  // namespace weir

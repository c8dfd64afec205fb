#include "kv/block_rows.h"

#include <vector>

#include "kv/codec.h"
#include "kv/hadamard.h"

namespace weir {

void copy_row(const KvGroup& group, const std::byte* from, int from_row, std::byte* to,
              int to_row) {
  const Codec& k_codec = codec_of(group.k_type);
  const Codec& v_codec = codec_of(group.v_type);
  for (const GroupLayer& layer : group.layers) {
    for (int head = 0; head < layer.n_kv_heads; ++head) {
      const int64_t k = layer.k_offset + head * layer.k_tile_bytes;
      const int64_t v = layer.v_offset + head * layer.v_tile_bytes;
      k_codec.copy_k(from + k, from_row, to + k, to_row, group.block_tokens, layer.k_dim);
      v_codec.copy_v(from + v, from_row, to + v, to_row, group.block_tokens, layer.v_dim);
    }
  }
}

void rotate_row(const KvGroup& group, std::byte* block, int row, int64_t from_position,
                int64_t to_position, const KeyRotator& rotator) {
  const Codec& codec = codec_of(group.k_type);
  std::vector<float> key;
  for (const GroupLayer& layer : group.layers) {
    key.resize(static_cast<size_t>(layer.k_dim));
    for (int head = 0; head < layer.n_kv_heads; ++head) {
      std::byte* tile = block + layer.k_offset + head * layer.k_tile_bytes;
      codec.decode_k(tile, group.block_tokens, row, key);
      if (group.k_rotated) hadamard(std::span<float>(key));
      rotator.rotate(layer.layer, from_position, to_position, key);
      if (group.k_rotated) hadamard(std::span<float>(key));
      codec.encode_k(tile, group.block_tokens, row, key);
    }
  }
}

}  // namespace weir

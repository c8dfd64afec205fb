#include "kv/block_rows.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kv/codec.h"
#include "kv/hadamard.h"

namespace weir {
namespace {

// Elements in a K tile, `stored`, and their places in a key, of which only they rotate. Both spans
// are as long where a tile has whole keys.
void place_rotating(std::span<const float> stored, std::span<float> key) {
  const size_t half = stored.size() / 2;
  std::copy_n(stored.begin(), half, key.begin());
  std::copy(stored.begin() + static_cast<ptrdiff_t>(half), stored.end(),
            key.begin() + static_cast<ptrdiff_t>(key.size() / 2));
}

void take_rotating(std::span<const float> key, std::span<float> stored) {
  const size_t half = stored.size() / 2;
  std::copy_n(key.begin(), half, stored.begin());
  std::copy_n(key.begin() + static_cast<ptrdiff_t>(key.size() / 2), stored.size() - half,
              stored.begin() + static_cast<ptrdiff_t>(half));
}

}  // namespace

void copy_row(const KvGroup& group, const std::byte* from, int from_row, std::byte* to,
              int to_row) {
  const Codec& k_codec = codec_of(group.k_type);
  const Codec& v_codec = codec_of(group.v_type);
  for (const GroupLayer& layer : group.layers) {
    for (int head = 0; head < layer.n_kv_heads; ++head) {
      const int64_t k = layer.k_offset + head * layer.k_tile_bytes;
      const int64_t v = layer.v_offset + head * layer.v_tile_bytes;
      k_codec.copy_k(from + k, from_row, to + k, to_row, group.block_tokens, layer.k_stored());
      v_codec.copy_v(from + v, from_row, to + v, to_row, group.block_tokens, layer.v_dim);
    }
  }
}

void rotate_row(const KvGroup& group, std::byte* block, int row, int64_t from_position,
                int64_t to_position, const KeyRotator& rotator) {
  const Codec& codec = codec_of(group.k_type);
  std::vector<float> key, stored;
  for (const GroupLayer& layer : group.layers) {
    key.assign(static_cast<size_t>(layer.k_dim), 0.0f);
    stored.resize(static_cast<size_t>(layer.k_stored()));
    for (int head = 0; head < layer.n_kv_heads; ++head) {
      std::byte* tile = block + layer.k_offset + head * layer.k_tile_bytes;
      codec.decode_k(tile, group.block_tokens, row, stored);
      if (group.k_rotated) hadamard(std::span<float>(stored));
      place_rotating(stored, key);
      rotator.rotate(layer.layer, from_position, to_position, key);
      take_rotating(key, stored);
      if (group.k_rotated) hadamard(std::span<float>(stored));
      codec.encode_k(tile, group.block_tokens, row, stored);
    }
  }
}

}  // namespace weir

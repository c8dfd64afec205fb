#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "geometry/kv_layout.h"
#include "kv/codec.h"
#include "kv/kv_cache.h"

namespace weir {

// Fingerprints instead of tensors: every row says which prefix, position, group, layer and head it
// belongs to, so that reading it shows whether it is the right one. Layouts made here store f32.

constexpr int kFingerprintDim = 4;

struct Fingerprint {
  uint64_t prefix = 0;  // hash of the tokens up to this row; 48 bits are stored
  int64_t position = 0;
  bool operator==(const Fingerprint&) const = default;
};

inline uint64_t extend_hash(uint64_t prefix, uint64_t token) {
  uint64_t h = (prefix ^ (token + 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
  h ^= h >> 32;
  return h * 0xc4ceb9fe1a85ec53u >> 16;  // 48 bits
}

// Any block length, one group per retention, `layers` layers of `heads` heads each.
inline KvLayout fingerprint_layout(int block_tokens, std::span<const Retention> retentions,
                                   int layers = 1, int heads = 1) {
  KvLayout layout;
  layout.format = KvFormat::uniform(KvType::f32, block_tokens);
  for (const Retention& retention : retentions) {
    KvGroup group;
    group.id = static_cast<GroupId>(layout.groups.size());
    group.retention = retention;
    group.k_type = group.v_type = KvType::f32;
    group.block_tokens = block_tokens;
    const int64_t tile = int64_t{block_tokens} * kFingerprintDim * 4;
    for (int i = 0; i < layers; ++i) {
      GroupLayer layer{.layer = static_cast<int>(layout.group_of.size()),
                       .n_kv_heads = heads,
                       .k_dim = kFingerprintDim,
                       .v_dim = kFingerprintDim,
                       .k_offset = i * 2 * heads * tile,
                       .v_offset = (i * 2 + 1) * heads * tile,
                       .k_tile_bytes = tile,
                       .v_tile_bytes = tile};
      layout.group_of.push_back(static_cast<int>(group.id));
      layout.slot_of.push_back(i);
      group.layers.push_back(layer);
    }
    group.largest_layer_bytes = {2 * heads * tile};
    group.block_bytes = group.largest_layer_bytes * layers;
    layout.groups.push_back(std::move(group));
  }
  return layout;
}

// What the row of a layer and head holds; K knows its position, V must not depend on it.
inline std::array<float, kFingerprintDim> fingerprint_row(const Fingerprint& f, const KvGroup& g,
                                                          const GroupLayer& layer, int head,
                                                          bool is_key) {
  return {static_cast<float>(f.prefix & 0xffffff), static_cast<float>(f.prefix >> 24),
          is_key ? static_cast<float>(f.position) : -1.0f,
          static_cast<float>((static_cast<int>(g.id) * 64 + layer.layer) * 64 + head)};
}

inline void write_layer_fingerprint(const KvGroup& g, const GroupLayer& layer, std::byte* block,
                                    int row, const Fingerprint& f) {
  const Codec& codec = codec_of(KvType::f32);
  for (int h = 0; h < layer.n_kv_heads; ++h) {
    codec.encode_k(block + layer.k_offset + h * layer.k_tile_bytes, g.block_tokens, row,
                   fingerprint_row(f, g, layer, h, true));
    codec.encode_v(block + layer.v_offset + h * layer.v_tile_bytes, g.block_tokens, row,
                   fingerprint_row(f, g, layer, h, false));
  }
}

inline void write_fingerprint(const KvGroup& g, std::byte* block, int row, const Fingerprint& f) {
  for (const GroupLayer& layer : g.layers) write_layer_fingerprint(g, layer, block, row, f);
}

inline bool has_layer_fingerprint(const KvGroup& g, const GroupLayer& layer, const std::byte* block,
                                  int row, const Fingerprint& f) {
  const Codec& codec = codec_of(KvType::f32);
  std::array<float, kFingerprintDim> read{};
  for (int h = 0; h < layer.n_kv_heads; ++h) {
    codec.decode_k(block + layer.k_offset + h * layer.k_tile_bytes, g.block_tokens, row, read);
    if (read != fingerprint_row(f, g, layer, h, true)) return false;
    codec.decode_v(block + layer.v_offset + h * layer.v_tile_bytes, g.block_tokens, row, read);
    if (read != fingerprint_row(f, g, layer, h, false)) return false;
  }
  return true;
}

inline bool has_fingerprint(const KvGroup& g, const std::byte* block, int row,
                            const Fingerprint& f) {
  for (const GroupLayer& layer : g.layers) {
    if (!has_layer_fingerprint(g, layer, block, row, f)) return false;
  }
  return true;
}

// Rotates a fingerprint's position, and notices a key that was not where it is said to have been.
class FingerprintRotator final : public KeyRotator {
 public:
  void rotate(int, int64_t from, int64_t to, std::span<float> row) const override {
    if (row[2] != static_cast<float>(from)) is_wrong_ = true;
    row[2] = static_cast<float>(to);
  }
  bool is_wrong() const { return is_wrong_; }

 private:
  mutable bool is_wrong_ = false;
};

// The memory of a step's scratch blocks, filled with NaN.
class Scratch {
 public:
  Scratch(const KvLayout& layout, const Step& step) {
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      const int64_t bytes = layout.groups[g].block_bytes.v * step.scratch_blocks(g);
      memory_.emplace_back(static_cast<size_t>(bytes), std::byte{0xff});
    }
  }
  // Block that row `row` of the table is in; null if the table does not reach there.
  std::byte* block(const KvGroup& g, const StepTable& table, int64_t row) {
    const int64_t index = (row - table.first_row) / g.block_tokens;
    if (row < table.first_row || index >= static_cast<int64_t>(table.blocks.size())) return nullptr;
    const BlockAddress& at = table.blocks[static_cast<size_t>(index)];
    if (at.memory) return at.memory;
    auto& scratch = memory_[static_cast<size_t>(g.id)];
    const int64_t offset = at.scratch * g.block_bytes.v;
    if (at.scratch < 0 || offset >= static_cast<int64_t>(scratch.size())) return nullptr;
    return scratch.data() + offset;
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
};

}  // namespace weir

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "geometry/kv_geometry.h"
#include "geometry/kv_type.h"

namespace weir {

// The storage types the user asked for, and the block length the planner chose.
struct KvFormat {
  KvType global_k = KvType::f16, global_v = KvType::f16;
  KvType local_k = KvType::f16, local_v = KvType::f16;
  int block_tokens = 32;  // B: 16, 32 or 64
  KvRotation rotation = KvRotation::automatic;
  // Where K and V come from one projection and have one type, store it once: the elements of K
  // that rotate by position, and V, of which the other elements of K are multiples. Where the
  // elements that rotate are no multiple of the type's block, both are stored.
  bool share = true;

  static KvFormat uniform(KvType type, int block_tokens = 32) {
    return {type, type, type, type, block_tokens, KvRotation::automatic, true};
  }
  KvType k_of(LayerKind kind) const { return kind == LayerKind::global ? global_k : local_k; }
  KvType v_of(LayerKind kind) const { return kind == LayerKind::global ? global_v : local_v; }
  // "q8_0", "k q8_0, v f16", or with both kinds of layers: "global f16; local k q8_0, v f16".
  std::string type_name() const;
  bool operator==(const KvFormat&) const = default;
};

enum class GroupId : uint8_t {};

// One owning layer inside a group's block. The K part of a layer is n_kv_heads tiles of
// block_tokens rows of k_dim elements, head after head; V likewise. Inside a tile the codec
// decides.
struct GroupLayer {
  int layer = 0;  // index in the model
  int n_kv_heads = 0, k_dim = 0, v_dim = 0;
  // 0: K and V are stored separately. Otherwise the K tile has only this many elements of a row,
  // the rotating ones of the pairs (p, p + k_dim/2): first all p, then their partners.
  int k_rotating = 0;
  int64_t k_offset = 0;      // bytes from the start of a block to the first K tile
  int64_t v_offset = 0;      // bytes from the start of a block to the first V tile
  int64_t k_tile_bytes = 0;  // one head's K tile
  int64_t v_tile_bytes = 0;

  bool is_shared() const { return k_rotating > 0; }
  int k_stored() const { return is_shared() ? k_rotating : k_dim; }  // elements in the K tile
};

// All owning layers with one retention rule. A block is the K and V of block_tokens consecutive
// positions for all of them: layer, then K and V, then head, then the tile of rows; contiguous.
struct KvGroup {
  GroupId id{};
  Retention retention;
  KvType k_type = KvType::f16, v_type = KvType::f16;
  bool k_rotated = false, v_rotated = false;
  int block_tokens = 0;
  Bytes block_bytes;          // a multiple of 64
  Bytes largest_layer_bytes;  // K and V of the widest layer in one block: a scratch block
  std::vector<GroupLayer> layers;
};

struct KvLayout {
  KvFormat format;
  std::vector<KvGroup> groups;  // global first, then local ones in order of first appearance
  std::vector<int> group_of;    // per model layer: index in groups of the KV it reads
  std::vector<int> slot_of;     // per model layer: index in that group's layers

  bool is_local(const KvGroup& g) const { return g.retention.kind != LayerKind::global; }
};

// Elements of a K row that are stored beside V: all, or the rotating ones where K and V are stored
// once.
int k_stored_elements(const KvLayer& layer, const KvFormat& format);

// Errors: invalid_input if a row is not a multiple of its type's block, naming layer kind and type.
Result<KvLayout> make_layout(const KvGeometry& geometry, const KvFormat& format);

// Version of the block layout: part of every name that leaves the process.
constexpr int kLayoutVersion = 1;

}  // namespace weir

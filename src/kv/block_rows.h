#pragma once

#include <cstddef>
#include <cstdint>

#include "geometry/kv_layout.h"
#include "kv/kv_cache.h"

namespace weir {

// Operations on one row of a block: the K and V of one token in all layers and heads of a group.
// `row` counts from the block's start.

// Moves the stored bits; nothing is rounded again.
void copy_row(const KvGroup& group, const std::byte* from, int from_row, std::byte* to, int to_row);

// Decodes the keys, rotates them from one position to another, and encodes them again: a quantized
// key is rounded once more. Keys that are stored Hadamard-rotated are turned back in between.
void rotate_row(const KvGroup& group, std::byte* block, int row, int64_t from_position,
                int64_t to_position, const KeyRotator& rotator);

}  // namespace weir

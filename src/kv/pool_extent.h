#pragma once

#include "geometry/kv_layout.h"
#include "geometry/window.h"

namespace weir {

constexpr Bytes kHugePage{2 * kMiB};
constexpr Bytes kSmallExtent{64 * kKiB};

// Unit in which a group's pool commits memory and hands it back. 2 MiB pages are read a third
// faster, but a pool that stays small should not hold one half empty: they are used when one
// conversation at `max_context` tokens (0: unknown, taken as long) would fill at least 8 MiB.
inline Bytes pool_extent(const KvGroup& group, int64_t max_context) {
  if (max_context == 0) return kHugePage;
  const Bytes full =
      max_held_blocks(group.retention, max_context, group.block_tokens) * group.block_bytes;
  return full.v >= 8 * kMiB ? kHugePage : kSmallExtent;
}

}  // namespace weir

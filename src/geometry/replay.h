#pragma once

#include <cstdint>

#include "geometry/kv_layout.h"

namespace weir {

// Window healing: when the global rows before a position are stored and local ones are lost, the
// local ones can be computed again exactly, from a start far enough back that nothing they depend
// on is missing. Each local layer widens that dependence by its window; global layers read stored
// rows and widen nothing.

// First token to compute again so that every row from `need[g]` on, of every local group g, and
// everything from token p on comes out as if the whole prefix had been computed. Entries of global
// groups are not looked at.
int64_t first_replayed_token(const KvLayout& layout, int64_t p, const std::vector<int64_t>& need);

// The same for a restart at the block boundary p: all blocks that it needs come out whole. A block
// boundary; 0 if everything has to be computed.
int64_t replay_start(const KvLayout& layout, int64_t p);

}  // namespace weir

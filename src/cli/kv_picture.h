#pragma once

#include <string>

#include "geometry/kv_geometry.h"
#include "geometry/kv_layout.h"
#include "kv/kv_cache.h"

namespace weir {

// What one sequence of some length should hold, and what it would in other engines.
struct KvForecast {
  Bytes planned;  // by the planner
  Bytes uniform;  // every layer with its own K and V keeping every token, in the same types
};
KvForecast forecast_kv(const KvGeometry& geometry, const KvFormat& format, int64_t tokens);

// A few lines that show the KV of one sequence by layer kind, as bars against what a uniform cache
// would take, and what else the engine holds. `own` is the sequence's, `all` what is in use of the
// budget.
std::string draw_kv(const KvGeometry& geometry, const KvLayout& layout, const KvUsage& own,
                    Bytes all, int64_t tokens, Bytes budget);

}  // namespace weir

#pragma once

#include <string>

#include "geometry/kv_geometry.h"
#include "geometry/kv_layout.h"
#include "kv/kv_cache.h"

namespace weir {

// What `tokens` tokens of one sequence hold between steps, by the window arithmetic alone.
struct KvForecast {
  Bytes global, local;
  Bytes uniform;  // every layer with its own K and V keeping every token, in the same types
  Bytes total() const { return global + local; }
};
KvForecast forecast_kv(const KvGeometry& geometry, const KvLayout& layout, int64_t tokens);

// A few lines that show the KV by layer kind: bars against what a uniform cache would take.
std::string draw_kv(const KvGeometry& geometry, const KvLayout& layout, const KvUsage& usage,
                    int64_t tokens, Bytes budget);

}  // namespace weir

#pragma once

#include <cstdint>

#include "geometry/kv_geometry.h"
#include "model/rope.h"

namespace weir {

class WeightLoader;

// How a family uses the rope keys that all architectures have in common.
struct RopeRule {
  enum class On : uint8_t { none, all, global, local };

  bool neox = true;       // see RopeLayer
  On rotates = On::all;   // the others have no positions at all
  On scaled = On::all;    // by rope.scaling.*: linear, yarn
  On divided = On::none;  // by rope_freqs.weight, or the longrope factors, where the file has them
  float local_theta = 0.0f;  // where the file has no rope.freq_base_swa; 0: that of global layers
};

// The rope of one layer. Errors go to the loader: keys out of range, and tensors, by name.
RopeLayer read_rope(WeightLoader& w, const KvLayer& layer, const RopeRule& rule);

}  // namespace weir

#pragma once

#include <functional>
#include <span>

#include "kv/kv_cache.h"

namespace weir {

// How a layer turns positions into rotations: pair p of n_rot / 2 turns by
// position * scale * theta^(-2p / n_rot).
struct RopeLayer {
  int n_rot = 0;     // rotating elements, from the start of a head; 0: the layer does not rotate
  bool neox = true;  // pairs (p, p + n_rot/2); otherwise (2p, 2p + 1)
  float theta = 10000.0f;
  float scale = 1.0f;  // of positions: 1 / the linear scaling factor

  // Rotates one head's row from position `from` to position `to`, in double precision.
  void rotate(double from, double to, std::span<float> row) const;
};

// A model's rope as the KV store's rotator.
class RopeRotator : public KeyRotator {
 public:
  explicit RopeRotator(std::function<RopeLayer(int layer)> rope_of)
      : rope_of_(std::move(rope_of)) {}
  void rotate(int layer, int64_t from, int64_t to, std::span<float> row) const override;

 private:
  std::function<RopeLayer(int)> rope_of_;
};

}  // namespace weir

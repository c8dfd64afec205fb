#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/kv_cache.h"

struct ggml_context;
struct ggml_tensor;

namespace weir {

// How a layer turns positions into rotations: pair p of n_rot / 2 turns by position * turn(p).
struct RopeLayer {
  // Pairs that turn beta_fast times or more within the original context keep their frequency, those
  // that turn beta_slow times or less are scaled, the pairs between are mixed. The two ends are
  // rounded outwards to whole pairs, as ggml does.
  struct Yarn {
    int original_context = 0;
    float beta_fast = 32.0f, beta_slow = 1.0f;
  };

  int n_rot = 0;     // rotating elements, from the start of a head; 0: the layer does not rotate
  bool neox = true;  // pairs (p, p + n_rot/2); otherwise (2p, 2p + 1)
  float theta = 10000.0f;
  float scale = 1.0f;  // of positions: 1 / the scaling factor
  std::optional<Yarn> yarn = {};
  float magnitude = 1.0f;  // rotated elements are multiplied by it
  // f32 [n_rot / 2 or more] with data: pair p's frequency is divided by element p. Not owned.
  const ggml_tensor* divisors = nullptr;

  // Radians per position of pair `pair`.
  double turn(int pair) const;
  // Rotates one head's row, which already has its magnitude, from position `from` to position `to`,
  // in double precision.
  void rotate(double from, double to, std::span<float> row) const;
};

// An f32 tensor that holds its data, for RopeLayer::divisors.
class RopeDivisors {
 public:
  explicit RopeDivisors(std::span<const float> numbers);
  const ggml_tensor* tensor() const { return tensor_; }

 private:
  struct ContextFree {
    void operator()(ggml_context* context) const;
  };
  std::unique_ptr<ggml_context, ContextFree> context_;
  ggml_tensor* tensor_;
};

// YaRN whose ramp ends between pairs, as some vendors have it: the divisors that stand for `yarn`
// and `scale` of `rope`, one a pair.
std::vector<float> unrounded_yarn_divisors(const RopeLayer& rope);

// The op that rotates `heads`, [head_dim, n_heads, n_tokens], by `positions`, i32 [n_tokens].
ggml_tensor* rotated(ggml_context* ctx, ggml_tensor* heads, ggml_tensor* positions,
                     const RopeLayer& layer);

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

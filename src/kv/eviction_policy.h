#pragma once

#include "weir/kv_hooks.h"

namespace weir {

// What the store does when nobody set a policy: evictable sequences first, the least recently used
// one before others; then the unit with the least chance of return x tokens to compute again, per
// byte it frees, where the chance falls with age until returns have shown otherwise (ReturnAges);
// then extra points of running sequences; pinned units last.
class CostAwareRecency final : public EvictionPolicy {
 public:
  int choose(std::span<const EvictionCandidate> candidates, int64_t bytes_missing) override;
};

// The unit that was used least recently, whatever it costs. For comparison.
class LeastRecentlyUsed final : public EvictionPolicy {
 public:
  int choose(std::span<const EvictionCandidate> candidates, int64_t bytes_missing) override;
};

}  // namespace weir

#include "kv/eviction_policy.h"

#include <algorithm>
#include <tuple>

namespace weir {
namespace {

enum class Rank { sequence, idle, active, pinned };

Rank rank_of(const EvictionCandidate& c) {
  if (c.is_pinned) return Rank::pinned;
  if (c.kind == EvictionCandidate::Kind::sequence) return Rank::sequence;
  return c.is_active ? Rank::active : Rank::idle;
}

// Tokens saved by keeping it, per byte and use of the store.
double worth(const EvictionCandidate& c) {
  if (c.kind == EvictionCandidate::Kind::sequence) return -static_cast<double>(c.age);
  const double bytes = static_cast<double>(std::max<int64_t>(1, c.unique_bytes));
  return static_cast<double>(c.rebuild_tokens) * c.return_rate / bytes;
}

template <typename Key>
int least(std::span<const EvictionCandidate> candidates, Key key) {
  const auto found = std::min_element(
      candidates.begin(), candidates.end(),
      [&](const EvictionCandidate& a, const EvictionCandidate& b) { return key(a) < key(b); });
  return static_cast<int>(found - candidates.begin());
}

}  // namespace

int CostAwareRecency::choose(std::span<const EvictionCandidate> candidates, int64_t) {
  return least(candidates, [](const EvictionCandidate& c) {
    return std::tuple(rank_of(c), worth(c), c.last_use);
  });
}

int LeastRecentlyUsed::choose(std::span<const EvictionCandidate> candidates, int64_t) {
  return least(candidates,
               [](const EvictionCandidate& c) { return std::tuple(c.is_pinned, c.last_use); });
}

}  // namespace weir

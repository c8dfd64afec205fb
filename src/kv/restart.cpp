#include "kv/restart.h"

#include <algorithm>

namespace weir {

int64_t restart_weight(RestartKind kind) {
  switch (kind) {
    case RestartKind::schedule:
      return 1;
    case RestartKind::latest:
    case RestartKind::end_of_prompt:
      return 2;
    case RestartKind::turn_start:
    case RestartKind::shared_prefix:
      return 4;
    case RestartKind::client:
      return 8;
  }
  return 1;
}

std::optional<size_t> point_to_drop(std::span<const RestartSummary> chain, int64_t bound) {
  std::optional<size_t> least;
  double least_score = 0;
  for (size_t i = 1; i + 1 < chain.size(); ++i) {
    const RestartSummary& point = chain[i];
    if (point.is_fixed || point.unique_bytes == 0) continue;
    if (bound > 0 && chain[i + 1].tokens - chain[i - 1].tokens > bound) continue;
    // Without it, a return to the stretch after it starts at the point before, or heals.
    const int64_t extra = point.tokens - std::max(chain[i - 1].tokens, point.healing_start);
    const int64_t stretch = chain[i + 1].tokens - point.tokens;
    const double score = static_cast<double>(extra + stretch) * static_cast<double>(point.weight) /
                         static_cast<double>(point.unique_bytes);
    if (!least || score < least_score) {
      least = i;
      least_score = score;
    }
  }
  return least;
}

}  // namespace weir

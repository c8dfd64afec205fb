#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace weir {

// Why a restart point is kept: what it is worth when points must go.
enum class RestartKind : uint8_t {
  schedule,       // every so many tokens
  latest,         // the last boundary of a sequence as it grew
  end_of_prompt,  // the last block boundary before a prompt's last token
  turn_start,     // where the last user turn begins
  shared_prefix,  // where conversations part
  client,         // set by whoever uses the store
};

// How much likelier a return there is than to a point of the schedule.
int64_t restart_weight(RestartKind kind);

// A restart point as thinning sees it: one of a chain, in order.
struct RestartSummary {
  int64_t tokens = 0;         // its boundary
  int64_t weight = 1;         // see restart_weight
  int64_t unique_bytes = 0;   // that only it keeps
  int64_t healing_start = 0;  // from where its local rows could be computed again
  bool is_fixed = false;      // pinned, or in use
};

// Which point of a chain goes: the one whose loss costs the fewest tokens to compute again, times
// weight, per byte it keeps. The first and the latest stay, and so do points without which two
// others would be more than `bound` tokens apart (0: no bound). Nothing if none may go.
std::optional<size_t> point_to_drop(std::span<const RestartSummary> chain, int64_t bound);

}  // namespace weir

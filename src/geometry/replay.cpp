#include "geometry/replay.h"

#include <algorithm>

#include "geometry/window.h"

namespace weir {

int64_t first_replayed_token(const KvLayout& layout, int64_t p, const std::vector<int64_t>& need) {
  // Backwards through the layers: from which token on must their input be right?
  std::vector<std::vector<int64_t>> rows;  // [group][slot]: first row that must be right
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    rows.emplace_back(layout.groups[g].layers.size(), need[g]);
  }
  int64_t input = p;
  for (size_t l = layout.group_of.size(); l-- > 0;) {
    const size_t g = static_cast<size_t>(layout.group_of[l]);
    const KvGroup& group = layout.groups[g];
    if (!layout.is_local(group)) continue;
    const size_t slot = static_cast<size_t>(layout.slot_of[l]);
    // Tokens from `input` on leave this layer right if it reads right rows. A layer that reads
    // another one's rows comes after it, so that one still sees the requirement.
    rows[g][slot] = std::min(rows[g][slot], first_visible(group.retention, input));
    if (group.layers[slot].layer == static_cast<int>(l)) input = std::min(input, rows[g][slot]);
  }
  return std::max<int64_t>(0, input);
}

int64_t replay_start(const KvLayout& layout, int64_t p) {
  const int64_t B = layout.format.block_tokens;
  std::vector<int64_t> need;
  for (const KvGroup& group : layout.groups) {
    need.push_back(first_needed_block(group.retention, p, B) * B);
  }
  return first_replayed_token(layout, p, need) / B * B;
}

}  // namespace weir

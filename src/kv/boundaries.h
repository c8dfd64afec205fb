#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "geometry/replay.h"
#include "geometry/window.h"

namespace weir {

// Goes along a path, block by block, and notes the boundaries at which each group could restart
// from the blocks that are present.
class Boundaries {
 public:
  explicit Boundaries(const KvLayout& layout) : layout_(layout), runs_(layout.groups.size(), 0) {
    group_tokens.assign(layout.groups.size(), 0);
  }

  // The next block of the path, which has all its global blocks. has(g): whether that of group g is
  // present.
  template <typename Has>
  void pass(Has has) {
    const int64_t B = layout_.format.block_tokens;
    end += B;
    bool all = true;
    for (size_t g = 0; g < runs_.size(); ++g) {
      runs_[g] = has(g) ? runs_[g] + 1 : 0;
      const bool is_valid = runs_[g] >= restart_blocks(layout_.groups[g].retention, end, B);
      if (is_valid) group_tokens[g] = end;
      all = all && is_valid;
    }
    if (all) restart = end;
  }

  // Where to go on, and how many tokens before it to compute again: at the last boundary that all
  // groups allow, or at the end of the path where rebuilding its local rows costs less.
  struct Start {
    int64_t tokens = 0, heal_tokens = 0;
    int64_t first_computed() const { return tokens - heal_tokens; }
  };
  Start best() const {
    const int64_t healing = replay_start(layout_, end);
    if (healing > restart) return {end, end - healing};
    return {restart, 0};
  }

  std::vector<int64_t> group_tokens;
  int64_t end = 0;      // of the path so far
  int64_t restart = 0;  // the last boundary where all groups can

 private:
  const KvLayout& layout_;
  std::vector<int64_t> runs_;  // blocks present in a row
};

}  // namespace weir

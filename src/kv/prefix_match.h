#pragma once

#include <cstdint>
#include <vector>

namespace weir {

// Why a prompt is not read from the store as far as it could be.
enum class MissReason : uint8_t {
  none,          // it is
  never_stored,  // the rest was never here, as far as is remembered
  evicted,       // it was here, and its blocks were given up
  window_gone,   // its global rows are here, but not the local ones before the boundary
  load_failed,   // a tier had it and could not give it back
};
constexpr int kMissReasonCount = 5;
const char* miss_reason_name(MissReason reason);

// What the store has of a prompt. Always leaves a token to compute.
struct PrefixMatch {
  int64_t tokens = 0;                 // a block boundary to restart at
  int64_t heal_tokens = 0;            // tokens before it to compute again, to rebuild local rows
  std::vector<int64_t> group_tokens;  // per group: the boundary it alone would allow
  int64_t common = 0;  // tokens before the first that differs from every block that is stored
  MissReason reason = MissReason::none;
  int64_t lost = 0;  // tokens to compute again that were stored once

  int64_t first_computed() const { return tokens - heal_tokens; }
};

}  // namespace weir

#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "kv/tier.h"

namespace weir {

struct KvTierOptions {
  Tier* tier = nullptr;                // must outlive the cache
  const TierPolicy* policy = nullptr;  // must outlive the cache; null: all is worth its place
  std::string model;                   // what rows depend on besides tokens: see root_name()
  // Records that are being written at a time; what that takes is reserved at once.
  int max_writes = 32;
  // Idle blocks are written ahead of their eviction until this many bytes could be freed at once
  // and found again.
  Bytes ready;
};

// Why a look into the tier brought nothing, or less than the tier promised.
enum class TierMiss : uint8_t {
  not_held,   // it has no more than RAM has
  not_worth,  // by the policy
  no_room,    // in the budget, for what it has
  failed,     // it could not read what it said it had
  corrupt,    // what it gave is not what was asked for
  cancelled,  // the load was ended before
};
constexpr int kTierMissCount = 6;
const char* tier_miss_name(TierMiss miss);

// Counts since the tier was set.
struct TierCounters {
  uint64_t loads = 0, hits = 0;  // looks, and those that brought something
  uint64_t hit_tokens = 0;       // that need not be computed, for the hits
  std::array<uint64_t, kTierMissCount> misses{};
  uint64_t written_records = 0, read_records = 0;
  Bytes written, read;             // of records, headers included
  uint64_t failed_writes = 0;      // records
  uint64_t not_worth = 0;          // idle units that the policy left out
  uint64_t evicted_unwritten = 0;  // blocks that had to go before they were written
};

// A look into the tier for more of a prompt than RAM has.
enum class LoadId : uint64_t {};
enum class LoadState : uint8_t { looking, reading, ended };

}  // namespace weir

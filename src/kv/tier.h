// What a tier below RAM is: a place for records, by name. docs/tiers.md says how to write one.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/sha256.h"

namespace weir {

// The name of one block of one group in every tier and every process: a hash of all that its rows
// depend on (tier_record.h).
struct RecordKey {
  Digest prefix{};
  uint8_t group = 0;
  auto operator<=>(const RecordKey&) const = default;
};

// A record is its header and its block, one after the other; in memory they lie apart.
struct RecordBytes {
  std::span<const std::byte> header, block;
  size_t size() const { return header.size() + block.size(); }
};
struct RecordSpace {
  std::span<std::byte> header, block;
  size_t size() const { return header.size() + block.size(); }
};

// An operation under way; numbered by who starts it.
enum class TierTicket : uint64_t {};

struct TierDone {
  TierTicket ticket{};
  // Of a get: a record of exactly the size that was asked for was read. Of a put: it will be found.
  bool is_ok = false;
  std::vector<bool> held;  // of a find: per key
};

struct TierStats {
  Bytes used, capacity;  // of records
  int64_t records = 0;
  Bytes memory;           // in RAM, for itself: charged to the budget as Tag::tier_memory
  Bytes in, out;          // record bytes written and read since the start
  double read_speed = 0;  // bytes a second, for the policy; 0: not known
};

// Keeps records outside the KV pools. Every operation is started here and ends in poll(): the
// thread that owns the KV cache never waits for a tier, and a tier never calls into the cache.
//
//   - Calls come from the cache's thread. A tier does its work on threads of its own.
//   - Memory given to an operation stays valid and unchanged until its end was polled.
//   - What was started ends, in bounded time: time-outs are the tier's.
//   - Operations on one key take effect in the order in which they were started.
//   - Nothing throws: libraries' exceptions end in the tier.
//   - A tier may forget any record at any time, and need not be believed: what comes back is
//     verified, and whatever is wrong with it makes it a miss.
//   - Memory that it keeps for itself is taken from the budget first, as Tag::tier_memory.
class Tier {
 public:
  virtual ~Tier() = default;

  // The four below start an operation. False: not now (a queue is full, the tier is broken, or it
  // does not store the like of this); then nothing was started and nothing ends.
  virtual bool find(TierTicket ticket, std::vector<RecordKey> keys) = 0;
  virtual bool get(TierTicket ticket, const RecordKey& key, RecordSpace into) = 0;
  // Of a record that is there already, nothing need be written.
  virtual bool put(TierTicket ticket, const RecordKey& key, RecordBytes record) = 0;
  virtual bool erase(TierTicket ticket, const RecordKey& key) = 0;

  // Takes a copy at once, for a block that must give way now. False without room in a write buffer.
  virtual bool put_copy(const RecordKey& key, RecordBytes record) {
    (void)key, (void)record;
    return false;
  }

  // What ended since the last call, in any order.
  virtual std::vector<TierDone> poll() = 0;
  // Waits until no operation uses memory that was given to it. What was under way may fail; all of
  // it can be polled afterwards. For the end of the process.
  virtual void drain() = 0;

  virtual TierStats stats() const = 0;
};

// What is worth a place in a tier.
class TierPolicy {
 public:
  virtual ~TierPolicy() = default;
  // Whether reading `bytes` from the tier costs less than computing `tokens` again.
  virtual bool is_worth_loading(int64_t tokens, Bytes bytes) const = 0;
};

// Compares seconds. What is not known yet (0) is taken to favour the tier.
class LoadIfFaster final : public TierPolicy {
 public:
  double seconds_per_token = 0;
  double bytes_per_second = 0;
  double seconds_per_load = 0;  // before the first byte

  bool is_worth_loading(int64_t tokens, Bytes bytes) const override {
    if (seconds_per_token <= 0) return true;
    const double reading =
        bytes_per_second > 0 ? static_cast<double>(bytes.v) / bytes_per_second : 0;
    return seconds_per_load + reading < seconds_per_token * static_cast<double>(tokens);
  }
};

}  // namespace weir

#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "kv/budget.h"
#include "kv/tier.h"
#include "kv/tier_record.h"

namespace weir {

// What can be wrong with a tier.
enum class TierFault : uint8_t {
  refuse,   // starts nothing
  fail,     // ends without success
  lose,     // says that it wrote, and did not
  deny,     // does not find what it has
  boast,    // finds what it does not have
  flip,     // a bit is another
  swap,     // gives another record
  cut,      // gives the beginning only
  foreign,  // gives a sound record of another model
  newer,    // gives a record of another version
  repeat,   // reports an end twice
};
constexpr int kTierFaults = 11;

// A tier in memory that outlives the caches over it. Operations end after a random number of polls,
// in any order but for those on one key, and go wrong as often as it is told. It also watches its
// caller: a block must not change while it is being written.
class MemoryTier final : public Tier {
 public:
  explicit MemoryTier(uint64_t seed) : random_(seed) {}

  // In 256ths; all operations of that kind.
  void set_fault(TierFault fault, int chance) { chances_[static_cast<size_t>(fault)] = chance; }
  void end_faults() { chances_ = {}; }
  void set_delay(int polls) { delay_ = polls; }    // at most
  void hold(bool is_held) { is_held_ = is_held; }  // nothing ends
  // The k-th operation from now on is refused, and no other. Negative: none.
  void refuse_after(int64_t passes) { refuse_after_ = passes; }
  // Likewise, one that was started does not succeed.
  void fail_after(int64_t passes) { fail_after_ = passes; }
  bool will_fail() const { return refuse_after_ >= 0 || fail_after_ >= 0; }  // still to come
  // Copies are taken up to this many bytes between two polls. False if the budget has no room.
  bool set_write_buffer(Budget& budget, Bytes size) {
    Result<Reservation> memory = budget.reserve(size, Tag::tier_memory);
    if (!memory) return false;
    memory_ = std::move(*memory);
    return true;
  }
  void close_write_buffer() { memory_ = Reservation(); }
  void forget(size_t n) {
    for (; n > 0 && !records_.empty(); --n) records_.erase(any_record());
  }
  bool holds(const RecordKey& key) const { return records_.contains(key); }
  size_t n_pending() const { return pending_.size(); }

  bool find(TierTicket ticket, std::vector<RecordKey> keys) override {
    return start({.kind = Kind::find, .ticket = ticket, .keys = std::move(keys)});
  }
  bool get(TierTicket ticket, const RecordKey& key, RecordSpace into) override {
    return start({.kind = Kind::get, .ticket = ticket, .keys = {key}, .into = into});
  }
  bool put(TierTicket ticket, const RecordKey& key, RecordBytes record) override {
    return start({.kind = Kind::put,
                  .ticket = ticket,
                  .keys = {key},
                  .record = record,
                  .sum = crc32c(record.block, crc32c(record.header))});
  }
  bool erase(TierTicket ticket, const RecordKey& key) override {
    return start({.kind = Kind::erase, .ticket = ticket, .keys = {key}});
  }
  bool put_copy(const RecordKey& key, RecordBytes record) override {
    const Bytes size{static_cast<int64_t>(record.size())};
    if (has_earlier(key, pending_.size()) || copied_ + size > memory_.size()) return false;
    copied_ += size;
    store(key, record);
    return true;
  }

  std::vector<TierDone> poll() override {
    copied_ = {};
    std::vector<TierDone> done;
    if (is_held_) return done;
    for (size_t i = 0; i < pending_.size();) {
      Operation& op = pending_[i];
      if (op.polls_left > 0) --op.polls_left;
      if (op.polls_left > 0 || has_earlier(op.keys.front(), i)) {
        ++i;
        continue;
      }
      done.push_back(perform(op));
      if (happens(TierFault::repeat)) done.push_back(done.back());
      pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    }
    std::shuffle(done.begin(), done.end(), random_);
    return done;
  }
  void drain() override {
    is_held_ = false;
    for (Operation& op : pending_) op.polls_left = 0;
  }
  TierStats stats() const override {
    TierStats stats = stats_;
    stats.records = static_cast<int64_t>(records_.size());
    for (const auto& [key, record] : records_) {
      stats.used += Bytes{static_cast<int64_t>(record.size())};
    }
    stats.capacity = {INT64_MAX};
    stats.memory = memory_.size();
    return stats;
  }

 private:
  enum class Kind { find, get, put, erase };
  struct Operation {
    Kind kind{};
    TierTicket ticket{};
    std::vector<RecordKey> keys = {};
    RecordSpace into = {};
    RecordBytes record = {};
    uint32_t sum = 0;
    int polls_left = 0;
  };
  using Record = std::vector<std::byte>;
  using Records = std::map<RecordKey, Record>;

  bool happens(TierFault fault) {
    const int chance = chances_[static_cast<size_t>(fault)];
    return chance > 0 && static_cast<int>(random_() % 256) < chance;
  }
  static bool is_due(int64_t& passes) { return passes >= 0 && passes-- == 0; }
  Records::iterator any_record() {
    return std::next(records_.begin(), static_cast<ptrdiff_t>(random_() % records_.size()));
  }

  bool start(Operation op) {
    if (is_due(refuse_after_) || happens(TierFault::refuse)) return false;
    op.polls_left = delay_ > 0 ? static_cast<int>(random_() % static_cast<uint64_t>(delay_)) : 0;
    pending_.push_back(std::move(op));
    return true;
  }
  bool has_earlier(const RecordKey& key, size_t end) const {
    return std::any_of(
        pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(end),
        [&](const Operation& op) { return op.kind != Kind::find && op.keys.front() == key; });
  }

  TierDone perform(Operation& op) {
    TierDone done{.ticket = op.ticket, .is_ok = false, .held = {}};
    const RecordKey& key = op.keys.front();
    if (op.kind == Kind::put) {
      WEIR_CHECK(crc32c(op.record.block, crc32c(op.record.header)) == op.sum);
    }
    if (is_due(fail_after_) || happens(TierFault::fail)) return done;
    done.is_ok = true;
    if (op.kind == Kind::find) {
      for (const RecordKey& k : op.keys) {
        const bool is_held = holds(k) && !happens(TierFault::deny);
        done.held.push_back(is_held || happens(TierFault::boast));
      }
    } else if (op.kind == Kind::put) {
      if (!happens(TierFault::lose)) store(key, op.record);
    } else if (op.kind == Kind::erase) {
      records_.erase(key);
    } else {
      done.is_ok = read(key, op.into);
    }
    return done;
  }

  void store(const RecordKey& key, RecordBytes record) {
    Record& kept = records_[key];
    kept.assign(record.header.begin(), record.header.end());
    kept.insert(kept.end(), record.block.begin(), record.block.end());
    stats_.in += Bytes{static_cast<int64_t>(kept.size())};
  }

  bool read(const RecordKey& key, RecordSpace into) {
    const auto found =
        happens(TierFault::swap) && !records_.empty() ? any_record() : records_.find(key);
    if (found == records_.end()) return false;
    Record record = found->second;
    if (happens(TierFault::flip)) {
      record[random_() % record.size()] ^= std::byte{1} << static_cast<int>(random_() % 8);
    }
    if (happens(TierFault::newer)) record[4] ^= std::byte{2};
    const size_t n_header = std::min(into.header.size(), record.size());
    if (happens(TierFault::foreign)) {
      Result<RecordHeader> header = read_record_header(std::span(record).first(n_header));
      if (header) {
        header->parent[3] ^= std::byte{1};
        const Record other = write_record_header(*header, std::span(record).subspan(n_header));
        std::ranges::copy(other, record.begin());
      }
    }
    if (happens(TierFault::cut)) record.resize(random_() % record.size());
    copy(record, 0, into.header);
    copy(record, into.header.size(), into.block);
    stats_.out += Bytes{static_cast<int64_t>(record.size())};
    return true;
  }
  static void copy(const Record& record, size_t from, std::span<std::byte> to) {
    if (from >= record.size()) return;
    const size_t n = std::min(to.size(), record.size() - from);
    std::memcpy(to.data(), record.data() + from, n);
  }

  std::mt19937_64 random_;
  std::array<int, kTierFaults> chances_{};
  int delay_ = 0;
  bool is_held_ = false;
  int64_t refuse_after_ = -1, fail_after_ = -1;
  Records records_;
  std::vector<Operation> pending_;
  Reservation memory_;
  Bytes copied_;
  TierStats stats_;
};

}  // namespace weir

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace weir {

// How long prefixes were idle before a request went on with them, as far as the store has seen, and
// what that says of those that are idle now. Conversations in turn come back the sooner the longer
// they have been away, and the one that left last is the last to come; where the use of most falls
// off with time it is the other way round. Times and ages are in uses of the store.
class ReturnAges {
 public:
  // A sequence has left its prefix idle.
  void leave(uint64_t time);
  // A request goes on with a prefix that was last used at about `time`, whether or not the store
  // still has it.
  void come_back(uint64_t time, uint64_t now);

  // Of one moment.
  class Rates {
   public:
    // Returns to expect per use of the store from a prefix that has been idle for `age`. Without
    // any return yet it falls as 1 / (age + 1).
    double operator()(uint64_t age) const;
    // The same of what does not follow their habits: it falls with age, on the same scale.
    double falling(uint64_t age) const {
      return 1 / ((static_cast<double>(age) + 1) * (1 + gone_));
    }

   private:
    friend class ReturnAges;
    const ReturnAges* ages_ = nullptr;
    double gone_ = 0;  // left longer ago than any that came back
  };
  Rates rates(uint64_t now) const;

 private:
  static constexpr size_t kRemembered = 256;  // the latest absences
  struct Absence {
    uint64_t left = 0, age = 0;
    bool is_over = false;
  };

  void count();

  std::deque<Absence> absences_;  // in order of leaving
  std::vector<double> ages_;      // of those that are over, ascending
  std::vector<double> sums_;      // of ages_ from each on
};

}  // namespace weir

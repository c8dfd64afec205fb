// Which conversation gives way, decided by replaying traces: by ReturnAges, by least recent use,
// and by knowing the future, which is the least that any rule can lose.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kv/return_ages.h"

namespace weir {
namespace {

using Trace = std::vector<int>;  // whose turn it is

constexpr size_t kTurns = 3000;
constexpr uint64_t kUses = 10;  // of the store, in a turn

// Turns of those who were known and no longer held, with room for `room` conversations. `victim`
// chooses among the held, given the time and when each was last used.
using Held = std::map<int, uint64_t>;
template <typename Victim, typename Told>
size_t lost(const Trace& trace, size_t room, Victim victim, Told told) {
  Held held, last_use;
  size_t lost = 0;
  uint64_t now = 0;
  for (const int who : trace) {
    now += kUses;
    const auto known = last_use.find(who);
    if (known != last_use.end()) told(known->second, now, true);
    if (!held.contains(who)) {
      lost += known != last_use.end();
      if (held.size() == room) held.erase(victim(held, now));
    }
    held[who] = last_use[who] = now;
    told(now, now, false);
  }
  return lost;
}

size_t lost_by_recency(const Trace& trace, size_t room) {
  const auto oldest = [](const Held& held, uint64_t) {
    return std::ranges::min_element(held, {}, [](const auto& h) { return h.second; })->first;
  };
  return lost(trace, room, oldest, [](uint64_t, uint64_t, bool) {});
}

size_t lost_by_return_ages(const Trace& trace, size_t room) {
  ReturnAges ages;
  const auto least = [&](const Held& held, uint64_t now) {
    const ReturnAges::Rates rates = ages.rates(now);
    return std::ranges::min_element(
               held, {}, [&](const auto& h) { return std::pair(rates(now - h.second), h.second); })
        ->first;
  };
  return lost(trace, room, least, [&](uint64_t left, uint64_t now, bool is_return) {
    is_return ? ages.come_back(left, now) : ages.leave(left);
  });
}

size_t lost_at_best(const Trace& trace, size_t room) {
  std::vector<uint64_t> next(trace.size());
  std::map<int, uint64_t> turn_of;
  for (size_t i = trace.size(); i-- > 0;) {
    next[i] = turn_of.contains(trace[i]) ? turn_of[trace[i]] : UINT64_MAX;
    turn_of[trace[i]] = i;
  }
  const auto latest = [&](const Held& held, uint64_t) {
    return std::ranges::max_element(held, {},
                                    [&](const auto& h) { return next[h.second / kUses - 1]; })
        ->first;
  };
  return lost(trace, room, latest, [](uint64_t, uint64_t, bool) {});
}

Trace trace_of(const std::function<int(int)>& whose) {
  Trace trace;
  for (int i = 0; i < static_cast<int>(kTurns); ++i) trace.push_back(whose(i));
  return trace;
}

// Sessions of 3 to 19 turns, so many at a time; nobody comes back after one.
Trace sessions(int at_a_time) {
  std::mt19937 random(7);
  std::vector<std::pair<int, uint32_t>> active;
  int next = 0;
  return trace_of([&](int) {
    while (std::ssize(active) < at_a_time) active.emplace_back(next++, 3 + random() % 17);
    const size_t i = random() % active.size();
    const int who = active[i].first;
    if (--active[i].second == 0) active.erase(active.begin() + static_cast<std::ptrdiff_t>(i));
    return who;
  });
}

struct NamedTrace {
  std::string name;
  Trace trace;
  bool is_loop;  // more take turns than are held
};

std::vector<NamedTrace> traces() {
  std::mt19937 random(1);
  const Trace some_often =
      trace_of([&](int) { return static_cast<int>(std::min(random() % 12, random() % 12)); });
  const Trace any = trace_of([&](int) { return static_cast<int>(random() % 12); });
  const Trace loop = trace_of([](int i) { return i % 12; });
  const Trace among_others =
      trace_of([](int i) { return i % 4 == 3 ? 1000 + i : (i - i / 4) % 8; });
  Trace habits = sessions(3);
  std::copy_n(loop.begin(), kTurns / 3, habits.begin());
  for (size_t i = 2 * kTurns / 3; i < kTurns; ++i) habits[i] = 5000 + static_cast<int>(i % 12);
  return {{"twelve in turn", loop, true},
          {"eight in turn among passers-by", among_others, true},
          {"twelve in turn, sessions, other twelve", habits, true},
          {"twelve, any of them", any, false},
          {"twelve, some more often", some_often, false},
          {"four sessions at a time", sessions(4), false},
          {"eight sessions at a time", sessions(8), false}};
}

TEST(ReturnAges, TracesLoseNoMoreThanByRecencyAndLoopsNearlyTheLeast) {
  std::printf("%-40s room  recency  by absences  least\n", "");
  for (const NamedTrace& t : traces()) {
    for (const size_t room : {4, 6}) {
      const size_t recent = lost_by_recency(t.trace, room);
      const size_t own = lost_by_return_ages(t.trace, room);
      const size_t best = lost_at_best(t.trace, room);
      std::printf("%-40s %4zu %8zu %12zu %6zu\n", t.name.c_str(), room, recent, own, best);
      EXPECT_LE(best, own) << t.name;
      EXPECT_LE(own, recent + recent / 40 + 10) << t.name;
      if (t.is_loop) {
        EXPECT_LE(own - best, (recent - best) / 2) << t.name;
      }
    }
  }
}

}  // namespace
}  // namespace weir

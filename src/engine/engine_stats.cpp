#include "engine/engine_stats.h"

#include <algorithm>
#include <cmath>

#include "engine/engine_core.h"

namespace weir {
namespace {

constexpr double kRateSeconds = 10;

}  // namespace

double decayed_rate(double rate, double seconds) {
  return rate * std::exp(-seconds / kRateSeconds);
}

double updated_rate(double rate, double count, double seconds) {
  if (seconds <= 0) return rate;
  const double kept = std::exp(-seconds / kRateSeconds);
  return rate * kept + count / seconds * (1 - kept);
}

void StepTimes::add(double seconds) {
  const auto bound = std::lower_bound(kUpperSeconds.begin(), kUpperSeconds.end(), seconds);
  ++counts[static_cast<size_t>(bound - kUpperSeconds.begin())];
  total_seconds += seconds;
}

EngineStats EngineCore::stats() const {
  EngineStats stats = counters_;
  stats.kv_limit = budget_.limit();
  stats.kv_used = budget_.used();
  stats.kv_peak = budget_.peak();
  for (size_t i = 0; i < stats.kv_by_tag.size(); ++i) {
    stats.kv_by_tag[i] = budget_.used(static_cast<Tag>(i));
  }
  stats.kv = cache_->usage();
  stats.compute_bytes = executor_.compute_bytes();
  stats.waiting = static_cast<int64_t>(waiting_.size());
  stats.running = static_cast<int64_t>(running_.size());
  stats.conversations = conversations_->size();
  stats.has_tier = options_.tier != nullptr;
  if (stats.has_tier) stats.tier = options_.tier->stats();
  stats.tier_traffic = cache_->tier_counters();
  return stats;
}

// Time without a step counts, too: the rate is of the wall clock.
void EngineCore::count_step(Clock::time_point start, int64_t generated) {
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  const Clock::time_point now = Clock::now();
  ++counters_.steps;
  counters_.step_times.add(seconds(now - start));
  const Clock::time_point before = counters_.steps == 1 ? start : last_step_end_;
  counters_.tokens_per_second = updated_rate(counters_.tokens_per_second,
                                             static_cast<double>(generated), seconds(now - before));
  last_step_end_ = now;
}

// `n_tokens` more of the request are in the KV, not counted in `committed` yet.
void EngineCore::count_computed(const Work& work, int64_t n_tokens) {
  counters_.computed_tokens += static_cast<uint64_t>(n_tokens);
  const int64_t again = std::min(n_tokens, work.most_committed - work.committed);
  counters_.recomputed_tokens += static_cast<uint64_t>(std::max<int64_t>(0, again));
}

void EngineCore::count_match(const Work& work, const PrefixMatch& found) {
  counters_.prompt_tokens += work.request.prompt.size();
  counters_.cached_tokens += static_cast<uint64_t>(work.committed);
  ++(work.committed > 0 ? counters_.requests_with_hit : counters_.requests_with_miss);
  counters_.healed_tokens += static_cast<uint64_t>(found.heal_tokens);
  counters_.lost_tokens[static_cast<size_t>(found.reason)] += static_cast<uint64_t>(found.lost);
}

void EngineCore::count_gap(const Work& work, Clock::time_point now) {
  const double gap = std::chrono::duration<double>(now - work.last_token).count();
  counters_.worst_gap_seconds = std::max(counters_.worst_gap_seconds, gap);
}

}  // namespace weir

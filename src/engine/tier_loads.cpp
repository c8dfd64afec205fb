// What lies between the engine and the tier below RAM: requests that wait for what it brings, idle
// conversations that are written ahead.
#include <algorithm>

#include "engine/engine_core.h"

namespace weir {

// Blocks are summed on the engine's thread before they are written, at several GB/s: this much
// between two steps keeps no reply waiting for long.
constexpr Bytes kWritesBetweenSteps{64 * kMiB};

// Whether the request has to wait for the tier: it is asked once for what RAM lacks of the prompt,
// and has until tier_wait to bring it.
bool EngineCore::waits_for_tier(Work& work) {
  if (!options_.tier || !options_.reuse) return false;
  const Clock::time_point now = Clock::now();
  if (!work.has_asked_tier) {
    work.has_asked_tier = true;
    work.load = cache_->start_load(tenants_->name_space(work.request.tenant), work.tokens);
    work.load_until = now + options_.tier_wait;
  }
  if (!work.load) return false;
  if (cache_->load_state(*work.load) != LoadState::ended && now < work.load_until) {
    is_waiting_for_tier_ = true;
    return true;
  }
  end_load(work);
  return false;
}

void EngineCore::end_load(Work& work) {
  if (!work.load) return;
  const PrefixMatch found = cache_->end_load(*work.load);
  work.load.reset();
  if (found.reason == MissReason::load_failed)
    work.promised_by_tier = found.first_computed() + found.lost;
}

bool EngineCore::tend_tier() {
  if (!options_.tier) return false;
  cache_->poll_tier();
  tier_policy_.seconds_per_token = prompt_token_seconds_;
  tier_policy_.bytes_per_second = options_.tier->stats().read_speed;
  cache_->write_behind(room_for_writing());
  return cache_->has_tier_work();
}

// Blocks that are being written cannot give way. So only as many as those who run will not need
// before they end, and never more than a quarter of the budget.
Bytes EngineCore::room_for_writing() const {
  const Bytes most{budget_.limit().v / 4};
  if (running_.empty()) return most;
  const Bytes under_way = budget_.used(Tag::staging_out);
  const Bytes unneeded =
      room_for_running(running_.front()->request.tenant) - promised_to_running() + under_way;
  return std::min({most, unneeded, under_way + kWritesBetweenSteps});
}

}  // namespace weir

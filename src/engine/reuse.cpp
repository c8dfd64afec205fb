// What a request finds in the KV and leaves there: its match in the prefix index, the restart
// points on its way, and waiting for a prefix that somebody else is reading.
#include <algorithm>

#include "engine/common_prefix.h"
#include "engine/engine_core.h"

namespace weir {
namespace {

// A prefix that another request is reading is waited for if it saves at least this many tokens.
constexpr int64_t kWorthWaiting = 64;

void add_stop(Work& work, int64_t at, RestartKind kind) {
  if (at <= work.committed || at >= work.length()) return;
  const auto place = std::lower_bound(work.stops.begin(), work.stops.end(), at,
                                      [](const Stop& stop, int64_t n) { return stop.at < n; });
  if (place != work.stops.end() && place->at == at) return;
  work.stops.insert(place, {at, kind});
}

}  // namespace

int64_t EngineCore::block_floor(int64_t tokens) const {
  return tokens - tokens % cache_->layout().format.block_tokens;
}

PrefixMatch EngineCore::match(const Work& work) const {
  PrefixMatch found = cache_->match(tenants_->name_space(work.request.tenant), work.tokens);
  if (work.promised_by_tier > found.first_computed()) {
    found.reason = MissReason::load_failed;
    found.lost = std::max(found.lost, work.promised_by_tier - found.first_computed());
  }
  return found;
}

// Another request of the tenant is about to compute what this one needs: reading it twice would
// cost more than waiting. The other then leaves a restart point where the two part.
bool EngineCore::waits_for_prefix(const Work& work, const PrefixMatch& found) {
  if (!options_.reuse) return false;
  for (auto& other : running_) {
    if (other->request.tenant != work.request.tenant || other->is_decoding()) continue;
    const int64_t common = common_prefix(other->tokens, work.tokens);
    const int64_t boundary = block_floor(std::min(common, work.length() - 1));
    if (boundary <= other->committed || boundary >= other->length()) continue;
    if (boundary - found.tokens + found.heal_tokens < kWorthWaiting) continue;
    add_stop(*other, boundary, RestartKind::shared_prefix);
    return true;
  }
  return false;
}

// Tokens of the prompt whose global blocks a running request holds already: they are in the
// accounts of the living and come at no further cost.
int64_t EngineCore::shared_with_running(const Work& work, const PrefixMatch& found) const {
  int64_t most = 0;
  for (const auto& other : running_) {
    if (other->request.tenant != work.request.tenant) continue;
    const int64_t common = common_prefix(other->tokens, work.tokens);
    most = std::max(most, block_floor(std::min({common, other->committed, found.tokens})));
  }
  return most;
}

// What was found and cannot be had is read again: a lost checkpoint costs time and no reply.
Result<SeqId> EngineCore::resume_or_read_again(const Work& work, PrefixMatch& found) {
  const NamespaceId space = tenants_->name_space(work.request.tenant);
  Result<SeqId> seq = cache_->resume(space, work.tokens, found);
  if (seq || found.tokens == 0 || seq.error().code() == Code::over_budget) return seq;
  if (options_.on_warning) {
    options_.on_warning(
        "reads " + std::to_string(found.tokens) +
        " tokens again, because their KV could not be restored: " + seq.error().message());
  }
  found = {.group_tokens = {},
           .common = found.common,
           .reason = MissReason::load_failed,
           .lost = found.first_computed() + found.lost};
  return cache_->create_sequence(space);
}

// Gives the request its sequence: what the index has of its prompt, or an empty one.
Status EngineCore::begin(Work& work, PrefixMatch found) {
  work.stops.clear();
  if (!options_.reuse) {
    work.seq = cache_->create_sequence();
    work.committed = 0;
  } else {
    const Result<SeqId> seq = resume_or_read_again(work, found);
    if (!seq) return seq.error();
    work.seq = *seq;
    work.committed = cache_->length(work.seq);
    // The next turn goes on from the end of the reply.
    cache_->keep_latest(work.seq, true);
    plan_stops(work, found);
  }
  work.has_seq = true;
  if (work.was_let_in) return {};  // sent back and here again: its own work, not reuse
  work.was_let_in = true;
  work.reply.usage.cached_tokens = work.committed;
  work.reply.reuse = {found.reason, found.common, found.tokens, found.heal_tokens};
  count_match(work, found);
  if (work.events.on_start) work.events.on_start();
  return {};
}

// Restart points in a prompt: before its last token (the same prompt again, another reply), at the
// start of the last user turn (an edit of it), where the index branches off, and so many on the way
// that going back anywhere stays within the bound.
void EngineCore::plan_stops(Work& work, const PrefixMatch& found) {
  for (const int64_t at : work.request.restart_at)
    add_stop(work, block_floor(at), RestartKind::turn_start);
  if (!found.group_tokens.empty())
    add_stop(work, block_floor(found.group_tokens.front()), RestartKind::shared_prefix);
  add_stop(work, block_floor(work.length() - 1), RestartKind::end_of_prompt);
  if (const int64_t apart = restart_distance_; apart > 0) {
    for (int64_t at = (work.committed / apart + 1) * apart; at < work.length(); at += apart)
      add_stop(work, at, RestartKind::schedule);
  }
  // A replay has its own end, and leaves a restart point there by itself.
  const int64_t replayed = cache_->replay_end(work.seq);
  std::erase_if(work.stops, [&](const Stop& stop) { return stop.at < replayed; });
}

// The next place at which a step of this request must end.
int64_t EngineCore::next_stop(const Work& work) const {
  int64_t end = work.length();
  if (!work.stops.empty()) end = std::min(end, work.stops.front().at);
  if (const int64_t replayed = cache_->replay_end(work.seq); replayed > work.committed)
    end = std::min(end, replayed);
  return end;
}

// After a step: leaves the restart point that was wanted here.
void EngineCore::mark_restart_points(Work& work) {
  if (!options_.reuse) return;
  std::optional<RestartKind> kind;
  while (!work.stops.empty() && work.stops.front().at <= work.committed) {
    if (work.stops.front().at == work.committed) kind = work.stops.front().kind;
    work.stops.erase(work.stops.begin());
  }
  if (!kind && restart_distance_ > 0 && work.committed % restart_distance_ == 0)
    kind = RestartKind::schedule;
  if (kind) cache_->mark_restart(work.seq, *kind);
}

}  // namespace weir

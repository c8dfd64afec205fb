#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kv/testing/prefix_model_state.h"

namespace weir {

// The part of a PrefixModel that has a tier below the store. The tier tells it what it holds; what
// can be brought back is then what the oracle makes of that.
class PrefixModelTier : public PrefixModelState {
 protected:
  explicit PrefixModelTier(const PrefixStream& stream) : PrefixModelState(stream) {}

  static bool is_tier_op(PrefixOpKind kind) { return kind >= PrefixOpKind::tier_write; }

  void apply_to_tier(const PrefixOp& op) {
    const Args& a = op.args;
    switch (op.kind) {
      case PrefixOpKind::tier_write:
        return cache_->write_behind({a[0] % 4 == 0 ? a[1] % 3000 : int64_t{1} << 20});
      case PrefixOpKind::demote:
        return demote(a);
      case PrefixOpKind::tier_poll:
        return cache_->poll_tier();
      case PrefixOpKind::tier_load:
        if (loading_.size() < 3) begin_load(a);
        return;
      case PrefixOpKind::tier_bring:
        return bring(a);
      case PrefixOpKind::tier_end:
        if (!loading_.empty()) end_load(a[0] % loading_.size());
        return;
      case PrefixOpKind::tier_fault:
        return change_tier(a);
      case PrefixOpKind::restart:
        return restart();
      default:
        return;
    }
  }

  // The whole chain of a text. With a sound tier, until it has it.
  void demote(const Args& a) {
    if (texts_.empty()) return;
    const Text& text = texts_[a[0] % texts_.size()];
    bool has_all = cache_->demote(text.space, text.tokens);
    if (a[1] % 2 == 0) return;
    for (int polls = 0; !has_all && polls < 100; ++polls) {
      cache_->poll_tier();
      cache_->check_invariants();
      has_all = cache_->demote(text.space, text.tokens);
    }
    expect(has_all || !is_sound_ || !can_reserve(), "a chain does not get into the tier");
  }

  bool begin_load(const Args& a) {
    Loading l;
    l.space = spaces_[a[0] % 5 == 0 ? 1 : 0];
    l.prompt = make_prompt(a, l.space);
    const std::optional<LoadId> id = cache_->start_load(l.space, l.prompt);
    if (!id) return false;
    l.id = *id;
    // Any of it may come.
    const std::vector<uint64_t> prefixes = PrefixOracle::prefixes_of(l.prompt);
    const auto B = static_cast<size_t>(config_.block_tokens);
    for (size_t end = B; end <= prefixes.size(); end += B)
      ever_.insert({l.space, prefixes[end - 1]});
    loading_.push_back(std::move(l));
    ++stats_.loads;
    return true;
  }

  // What came of it is a text from now on, so that its restart points are known.
  void end_load(size_t index) {
    const Loading l = loading_[index];
    const PrefixMatch found = cache_->end_load(l.id);
    loading_.erase(loading_.begin() + static_cast<ptrdiff_t>(index));
    stats_.failed_loads += found.reason == MissReason::load_failed;
    remember(l.space, l.prompt, static_cast<int64_t>(l.prompt.size()));
  }

  // A load, from its beginning to its end. From a sound tier comes the best that it has, as long as
  // there is room.
  void bring(const Args& a) {
    if (loading_.size() > 2) return;
    const int64_t evicted_before = evictions_.n;
    const bool is_quiet = !cache_->has_tier_work() && tier_.n_pending() == 0 && loading_.empty();
    if (!begin_load(a)) return;
    const Loading l = loading_.back();
    const int64_t here = cache_->match(l.space, l.prompt).first_computed();
    const int64_t best = best_with_tier(l);
    const auto no_room = [&] {
      return cache_->tier_counters().misses[static_cast<size_t>(TierMiss::no_room)];
    };
    const uint64_t no_room_before = no_room();
    for (int polls = 0; cache_->load_state(l.id) != LoadState::ended && polls < 100; ++polls) {
      cache_->poll_tier();
      cache_->check_invariants();
    }
    const bool has_ended = cache_->load_state(l.id) == LoadState::ended;
    const bool has_evicted = evictions_.n != evicted_before;
    const bool had_room = no_room() == no_room_before;
    const int64_t found = cache_->match(l.space, l.prompt).first_computed();
    expect(has_ended || !is_sound_, "a load does not end");
    expect(found <= std::max(best, best_with_tier(l)), "more came than the tier had");
    expect(found >= here || has_evicted, "a load lost something");
    if (is_sound_ && is_quiet && !has_evicted && had_room) {
      expect(found == best, "less came than the tier had");
    }
    stats_.brought += found > here;
    end_load(loading_.size() - 1);
  }

  // First token to compute with all that RAM and the tier have.
  int64_t best_with_tier(const Loading& l) {
    const int64_t B = config_.block_tokens;
    const std::vector<Digest> names = chain_names(
        root_name(cache_->layout(), "m", salt_of(l.space)), l.prompt, config_.block_tokens);
    const auto is_in_tier = [&](size_t g, int64_t block) {
      return tier_.holds({names[static_cast<size_t>(block)], static_cast<uint8_t>(g)});
    };
    int64_t known = cache_->bytes_of(l.space, l.prompt).tokens;
    for (bool has_all = true; has_all && known + B <= static_cast<int64_t>(l.prompt.size());) {
      for (size_t g = 0; g < config_.groups.size(); ++g) {
        const bool is_global = config_.groups[g].kind == LayerKind::global;
        has_all = has_all && (!is_global || is_in_tier(g, known / B));
      }
      if (has_all) known += B;
    }
    std::vector<std::vector<uint64_t>> store;
    return oracle_
        .best(PrefixOracle::prefixes_of(l.prompt), known, holders(l.space, store), is_in_tier)
        .first_computed;
  }

  void change_tier(const Args& a) {
    is_sound_ = a[0] % 2 == 0;
    tier_.end_faults();
    if (is_sound_) return;
    tier_.forget(a[3] % 4);
    tier_.set_fault(static_cast<TierFault>(a[1] % kTierFaults), a[2] % 2 == 0 ? 256 : 100);
  }

  void restart() {
    for (const Running& r : running_) remember(r.space, r.prompt, r.length);
    running_.clear();
    pins_.clear();
    for (Loading& l : loading_) remember(l.space, l.prompt, static_cast<int64_t>(l.prompt.size()));
    loading_.clear();
    ever_.clear();
    const NamespaceId second = spaces_[1];
    count_writes();
    cache_.reset();
    expect(memory_.committed() == 0, "blocks outlive their store");
    expect(budget_.used() == pressure_.size() + tier_.stats().memory, "bytes outlive their store");
    open_store();
    for (Text& t : texts_) {
      if (t.space == second) t.space = spaces_[1];
    }
    ++stats_.restarts;
  }

  void finish_tier() {
    tier_.end_faults();
    while (!loading_.empty()) end_load(loading_.size() - 1);
    for (int polls = 0; cache_->has_tier_work() && polls < 100; ++polls) cache_->poll_tier();
    expect(!cache_->has_tier_work(), "something of the tier never ends");
    tier_.close_write_buffer();
    count_writes();
  }

 private:
  void count_writes() {
    stats_.written += static_cast<int64_t>(cache_->tier_counters().written_records);
  }
  // What a write takes for itself.
  bool can_reserve() const { return budget_.would_fit({4096}); }

  bool is_sound_ = true;
};

}  // namespace weir

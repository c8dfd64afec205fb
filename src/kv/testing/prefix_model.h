#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kv/testing/prefix_model_tier.h"

namespace weir {

// Named sequences, restart points and evictions against token lists and definitions. Applies each
// operation to a KvCache and compares afterwards: every row read is followed through the layers of
// a model of fingerprints, and every match is held to the oracle's best.
class PrefixModel : public PrefixModelTier {
 public:
  explicit PrefixModel(const PrefixStream& stream) : PrefixModelTier(stream) {}

  // What went wrong first, or nothing.
  std::optional<std::string> run(const std::vector<PrefixOp>& ops) {
    for (const PrefixOp& op : ops) {
      budget_.reset_peak();
      const int64_t most = std::max(budget_.limit().v, budget_.used().v);
      const int64_t evicted_before = evictions_.n;
      const Known before = probe(op);
      apply(op);
      ++stats_.ops;
      stats_.evicted += evictions_.n - evicted_before;
      expect(budget_.peak().v <= std::max(most, budget_.limit().v), "passed the limit");
      check();
      check_match(op);
      if (evictions_.n == evicted_before && !may_lose(op.kind)) check_kept(before);
      if (failure_) return failure_;
    }
    finish_all();
    return failure_;
  }

 private:
  // --- operations ---
  void apply(const PrefixOp& op) {
    const Args& a = op.args;
    if (is_tier_op(op.kind)) return apply_to_tier(op);
    if (op.kind == PrefixOpKind::start || running_.empty()) return start(a, true);
    Running& r = running_[a[0] % running_.size()];
    switch (op.kind) {
      case PrefixOpKind::start:
        return;
      case PrefixOpKind::cold:
        return start(a, false);
      case PrefixOpKind::read:
        return read(r, a);
      case PrefixOpKind::decode:
        return decode(r, a, 1, 1);
      case PrefixOpKind::draft: {
        const int64_t n = 1 + a[1] % 6;
        return decode(r, a, n, a[2] % (n + 1));
      }
      case PrefixOpKind::abort:
        return decode(r, a, 1 + a[1] % 40, -1);
      case PrefixOpKind::cross:
        return cross(r);
      case PrefixOpKind::mark:
        return mark(r, a);
      case PrefixOpKind::latest:
        r.keeps_latest = a[1] % 4 != 0;
        return cache_->keep_latest(r.id, r.keeps_latest);
      case PrefixOpKind::rewind:
        return rewind(r, a);
      case PrefixOpKind::fork:
        return fork(r);
      case PrefixOpKind::finish:
        return finish(a[0] % running_.size());
      case PrefixOpKind::shift:
        return shift(a[0] % running_.size(), a);
      default:
        return apply_to_store(op);
    }
  }

  void apply_to_store(const PrefixOp& op) {
    const Args& a = op.args;
    switch (op.kind) {
      case PrefixOpKind::pin:
        return pin(a);
      case PrefixOpKind::unpin:
        if (pins_.empty()) return;
        cache_->unpin(pins_[a[0] % pins_.size()]);
        pins_.erase(pins_.begin() + a[0] % static_cast<ptrdiff_t>(pins_.size()));
        return;
      case PrefixOpKind::drop:
        return drop(a);
      case PrefixOpKind::budget: {
        const int64_t least = static_cast<int64_t>(config_.groups.size()) + 1;
        return budget_.set_limit({(least + a[0] % (config_.extents + 3)) * kExtent - a[1] % 700});
      }
      case PrefixOpKind::pressure:
        return pressure(a[0] % 3 * 3000 + a[1] % 100);
      case PrefixOpKind::fit:
        return cache_->fit_to_budget();
      case PrefixOpKind::flush:
        return flush();
      case PrefixOpKind::quota:
        if (!config_.has_quotas) return;
        return cache_->set_quota(spaces_[a[0] % 2], {a[1] % 4 * 1500}, {a[2] % 3 * 6000});
      case PrefixOpKind::close:
        return close(a[0] % 2);
      default:
        return;
    }
  }

  void start(const Args& a, bool from_match) {
    if (running_.size() >= kMaxRunning) return finish(a[0] % running_.size());
    Running r;
    r.space = spaces_[a[0] % 5 == 0 ? 1 : 0];
    r.prompt = make_prompt(a, r.space);
    const Bytes before = budget_.used() - cache_->usage().metadata;
    if (from_match) {
      const PrefixMatch match = cache_->match(r.space, r.prompt);
      compare_match(r.space, r.prompt, match);
      Result<SeqId> seq = cache_->resume(r.space, r.prompt, match);
      if (!seq.ok()) return expect(false, "cannot resume: " + seq.error().message());
      r.id = *seq;
      r.length = match.first_computed();
      r.replay_end = match.heal_tokens > 0 ? match.tokens : 0;
      stats_.matched += match.tokens > 0;
      stats_.healed += match.heal_tokens > 0;
      stats_.missed += match.lost > 0;
    } else {
      r.id = cache_->create_sequence(r.space);
    }
    expect(budget_.used() - cache_->usage().metadata == before, "a start took memory");
    running_.push_back(std::move(r));
  }

  void read(Running& r, const Args& a) {
    const int64_t left = static_cast<int64_t>(r.prompt.size()) - r.length;
    if (left <= 0) return decode(r, a, 1, 1);
    const std::array<int64_t, 4> chunks = {1, 3, config_.block_tokens * 2, 1000};
    int64_t n = std::min(left, chunks[a[1] % 4]);
    if (r.is_replaying()) n = std::min(n, r.replay_end - r.length);
    step(r, n, n);
  }

  void decode(Running& r, const Args& a, int64_t n, int64_t accepted) {
    if (r.is_replaying()) n = std::min(n, r.replay_end - r.length);
    if (r.is_replaying() && accepted >= 0) accepted = n;
    if (r.length + n > max_rows()) return;
    if (accepted >= 0) accepted = std::min(accepted, n);
    while (static_cast<int64_t>(r.prompt.size()) < r.length + n) {
      r.prompt.push_back(static_cast<int32_t>(a[3] % 2));
    }
    step(r, n, accepted);
  }

  // The next n tokens of the prompt, of which `accepted` stay (negative: the step is aborted).
  void step(Running& r, int64_t n, int64_t accepted) {
    const Tokens next(r.prompt.begin() + r.length, r.prompt.begin() + r.length + n);
    StepItem item{.seq = r.id, .n_tokens = n, .tokens = next};
    if (accepted != n && !r.is_replaying()) item.min_accept = std::clamp<int64_t>(accepted, 0, 1);
    const bool fits = budget_.would_fit(cache_->step_need({{item}}));
    Result<Step> planned = cache_->plan_step({{item}});
    judge(planned.status(), fits);
    if (!planned.ok()) return;
    ++stats_.steps;
    cache_->check_invariants();
    const Tokens all(r.prompt.begin(), r.prompt.begin() + r.length + n);
    FakeLayers layers(cache_->layout(), *planned);
    layers.compute(*planned, 0, prints_of(all));
    if (layers.failure) expect(false, *layers.failure);
    for (const bool is_right : layers.is_right) {
      expect(is_right || r.is_replaying(), "a token was computed from wrong rows");
    }
    if (accepted < 0) return;  // aborted by its destructor
    planned->commit({{accepted}});
    const int64_t B = config_.block_tokens;
    const bool has_filled = (r.length + accepted) / B > r.length / B;
    const bool moves_latest = r.keeps_latest && has_filled && !r.is_replaying();
    r.length += accepted;
    if (moves_latest) {
      const std::vector<int64_t> points = points_of(r.space, r.prompt);
      expect(std::find(points.begin(), points.end(), r.length / B * B) != points.end(),
             "no restart point at the latest boundary");
    }
    if (!r.is_replaying()) r.replay_end = 0;
    for (int64_t end = config_.block_tokens; end <= r.length; end += config_.block_tokens) {
      ever_.insert({r.space, oracle_.prefixes_of(r.prompt)[static_cast<size_t>(end - 1)]});
    }
  }

  void cross(Running& r) {
    if (!r.is_replaying()) return;
    const int64_t n = r.replay_end - r.length + 1;
    if (r.length + n > static_cast<int64_t>(r.prompt.size())) return;
    const Tokens next(r.prompt.begin() + r.length, r.prompt.begin() + r.length + n);
    const StepItem item{.seq = r.id, .n_tokens = n, .tokens = next};
    expect(cache_->plan_step({{item}}).status().code() == Code::invalid_input,
           "a step crossed the end of a rebuilding");
  }

  void mark(Running& r, const Args& a) {
    const bool can = r.length > 0 && r.length % config_.block_tokens == 0 && !r.is_replaying();
    expect(cache_->mark_restart(r.id, static_cast<RestartKind>(a[1] % 6)) == can,
           "a mark where it must not be, or none where it must");
  }

  void rewind(Running& r, const Args& a) {
    const int64_t n =
        a[1] % 4 == 0 ? a[2] % (r.length + 1) : std::max<int64_t>(0, r.length - a[2] % 9);
    if (r.is_replaying() && n > 0) {
      const bool is_noop = n == r.length;
      return expect(is_noop || cache_->rewind(r.id, n).code() == Code::invalid_input,
                    "rewound while it was being rebuilt");
    }
    bool can = true;
    for (size_t g = 0; n > 0 && g < config_.groups.size(); ++g) {
      const int64_t B = config_.block_tokens, read = oracle_.first_read(g, n);
      if (config_.groups[g].kind == LayerKind::global || (read == n && n % B == 0)) continue;
      can = can && read >= oracle_.first_read(g, r.length) / B * B;
    }
    remember(r.space, r.prompt, r.length);
    const Status status = cache_->rewind(r.id, n);
    if (!can && n < r.length) {
      return expect(status.code() == Code::not_found, "rewound to a lost window");
    }
    judge(status, n == r.length || n == 0);
    if (!status.ok()) return;
    r.length = n;
    if (n == 0) r.replay_end = 0;
    r.prompt.resize(static_cast<size_t>(n));
    // Another way on from here.
    for (int i = 0; i < a[3] % 5; ++i) r.prompt.push_back(static_cast<int32_t>(2 + a[3] % 2));
  }

  void fork(Running& r) {
    if (running_.size() >= kMaxRunning) return;
    const Result<SeqId> seq = cache_->fork(r.id);
    if (r.is_replaying()) {
      return expect(seq.status().code() == Code::invalid_input, "forked while being rebuilt");
    }
    judge(seq.status(), false);
    if (!seq.ok()) return;
    Running copy = r;
    copy.id = *seq;
    running_.push_back(std::move(copy));
  }

  void finish(size_t index) {
    const Running r = running_[index];
    remember(r.space, r.prompt, r.is_replaying() ? r.replay_end : r.length);
    const std::vector<int64_t> points_before = points_of(r.space, r.prompt);
    cache_->release(r.id);
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(index));
    expect(points_of(r.space, r.prompt) == points_before, "a restart point went with its sequence");
  }

  // Moved positions: the blocks that others know must not change.
  void shift(size_t index, const Args& a) {
    Running& r = running_[index];
    if (r.is_replaying() || r.length < 2) return;
    const FingerprintRotator rotator;
    const int64_t row = a[1] % r.length;
    const Status status = a[2] % 2 == 0 ? cache_->seq_add(r.id, row, -1, 3, rotator)
                                        : cache_->seq_rm(r.id, row, row + 1 + a[2] % 5);
    if (status.code() == Code::not_found) return;
    judge(status, false);
    if (!status.ok()) return;
    cache_->check_invariants();
    expect(!rotator.is_wrong(), "a key was rotated from another position");
    expect(cache_->is_inexact(r.id) != cache_->is_named(r.id), "inexact and named");
    remember(r.space, r.prompt, r.length);
    cache_->release(r.id);
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(index));
  }

  void pin(const Args& a) {
    if (texts_.empty() || pins_.size() > 3) return;
    const Text& text = texts_[a[0] % texts_.size()];
    const bool is_known = cache_->bytes_of(text.space, text.tokens).tokens > 0;
    cache_->set_pin_share(a[1] % 3 == 0 ? 0.05 : 0.6);
    const Result<PinId> made = cache_->pin(text.space, text.tokens);
    expect(is_known || made.status().code() == Code::not_found, "pinned nothing");
    if (made.ok()) pins_.push_back(*made);
  }

  void drop(const Args& a) {
    if (texts_.empty()) return;
    const size_t index = a[0] % texts_.size();
    drop_text(index, a[1] % 2 == 0 ? 0 : a[2] % max_rows());
  }

  void pressure(int64_t bytes) {
    pressure_ = Reservation();
    Result<Reservation> taken = budget_.reserve({bytes}, Tag::staging_in);
    if (taken.ok()) pressure_ = std::move(*taken);
  }

  // Everything idle goes, and frees what it was said to free.
  void flush() {
    const Bytes limit = budget_.limit();
    const KvUsage before = cache_->usage();
    expect(cache_->evictable() == before.idle + before.restart, "wrong evictable bytes");
    budget_.set_limit({0});
    cache_->fit_to_budget();
    budget_.set_limit(limit);
    const KvUsage after = cache_->usage();
    expect(after.idle.v == 0 && after.restart.v == 0, "idle blocks stay when all must go");
    expect(after.resident() == before.resident(), "a running sequence lost blocks");
  }

  void close(size_t which) {
    if (which == 0) return;  // one stays
    const NamespaceId gone = spaces_[which];
    for (size_t i = running_.size(); i-- > 0;) {
      if (running_[i].space == gone) finish(i);
    }
    for (size_t i = loading_.size(); i-- > 0;) {
      if (loading_[i].space == gone) end_load(i);
    }
    std::erase_if(texts_, [&](const Text& t) { return t.space == gone; });
    cache_->close_namespace(gone);
    spaces_[which] = cache_->open_namespace();
    cache_->set_tier_salt(spaces_[which], salt_of(spaces_[which]));
  }

  void finish_all() {
    pressure_ = Reservation();
    while (!running_.empty()) finish(running_.size() - 1);
    finish_tier();
    flush();
    cache_->check_invariants();
    const KvUsage usage = cache_->usage();
    const Bytes fixed = usage.metadata + tier_memory_at_start_;
    expect(budget_.used() == fixed && memory_.committed() == 0, "leaked");
    expect(usage.metadata.v == 0 || usage.metadata.v == config_.ghosts * 8, "leaked metadata");
  }
};

}  // namespace weir

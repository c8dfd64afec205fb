#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kv/eviction_policy.h"
#include "kv/kv_cache.h"
#include "kv/testing/fake_layers.h"
#include "kv/testing/fake_memory.h"
#include "kv/testing/memory_tier.h"
#include "kv/testing/prefix_oracle.h"
#include "kv/testing/prefix_stream.h"

namespace weir {

// The state of a PrefixModel: the store under test, the sequences and texts it has seen, and what
// is compared after every operation.
class PrefixModelState {
 public:
  struct Stats {
    int64_t ops = 0, steps = 0, refused = 0, evicted = 0, matched = 0, healed = 0, missed = 0;
    int64_t loads = 0, brought = 0, failed_loads = 0, written = 0, restarts = 0;
    Stats& operator+=(const Stats& o) {
      loads += o.loads, brought += o.brought, failed_loads += o.failed_loads;
      written += o.written, restarts += o.restarts;
      ops += o.ops, steps += o.steps, refused += o.refused, evicted += o.evicted;
      matched += o.matched, healed += o.healed, missed += o.missed;
      return *this;
    }
  };

  const Stats& stats() const { return stats_; }

 protected:
  static constexpr int64_t kExtent = 4096;
  static constexpr size_t kMaxRunning = 5, kMaxTexts = 16;

  // Chooses as the store would or at random, and keeps count.
  struct Policy final : EvictionPolicy {
    explicit Policy(bool random) : is_random(random) {}
    int choose(std::span<const EvictionCandidate> units, int64_t missing) override {
      if (missing <= 0) is_wrong = true;
      ++chosen;
      if (!is_random) return standard.choose(units, missing);
      return static_cast<int>((static_cast<uint64_t>(chosen) * 7919) % units.size());
    }
    bool is_random = false, is_wrong = false;
    int64_t chosen = 0;
    CostAwareRecency standard;
  };
  struct Evictions final : KvObserver {
    void on_evicted(const EvictionCandidate&) override { ++n; }
    int64_t n = 0;
  };
  struct Loading {
    LoadId id{};
    NamespaceId space{};
    Tokens prompt;
  };
  struct Text {
    NamespaceId space{};
    Tokens tokens;
    std::vector<uint64_t> prefixes;
  };
  struct Running {
    SeqId id{};
    NamespaceId space{};
    Tokens prompt;  // committed tokens, then those to come
    int64_t length = 0;
    int64_t replay_end = 0;
    bool keeps_latest = false;
    bool is_replaying() const { return length < replay_end; }
  };
  struct Known {
    size_t text = 0;
    int64_t tokens = 0;
    size_t points = 0;
  };
  using Args = std::array<uint16_t, 4>;

  void expect(bool is_true, const std::string& what) {
    if (!is_true && !failure_) failure_ = what;
  }
  int64_t max_rows() const { return config_.block_tokens == 1 ? 50 : config_.block_tokens * 18; }

  explicit PrefixModelState(const PrefixStream& stream)
      : config_(decode_config(stream)),
        oracle_(config_),
        policy_(config_.has_random_policy),
        tier_(stream.config[1] + 256u * stream.config[5]) {
    budget_.set_limit({config_.extents * kExtent});
    tier_.set_delay(config_.tier_delay);
    if (config_.write_buffer > 0) tier_.set_write_buffer(budget_, {config_.write_buffer});
    open_store();
  }

  void open_store() {
    auto cache = KvCache::create(
        fingerprint_layout(config_.block_tokens, config_.groups, config_.layers), budget_, memory_,
        {.address_space = {(config_.extents + 6) * kExtent},
         .max_context = 0,
         .extent = {kExtent},
         .poison = true,
         .spare_extents = config_.spare_extents,
         .ghosts = config_.ghosts,
         .compare_duplicates = true,
         .hash_mask = config_.hash_mask});
    WEIR_CHECK(cache.ok());
    cache_ = std::move(*cache);
    cache_->set_eviction_policy(&policy_);
    cache_->add_observer(&evictions_);
    cache_->set_restart_limit(4);
    // Even if the budget has no room for it.
    const Bytes limit = budget_.limit();
    budget_.set_limit({INT64_MAX});
    const KvTierOptions options{
        .tier = &tier_, .policy = nullptr, .model = "m", .max_writes = 6, .ready = {INT64_MAX}};
    WEIR_CHECK(cache_->set_tier(options).ok());
    budget_.set_limit(limit);
    budget_.reset_peak();
    tier_memory_at_start_ = cache_->usage().tier_memory;
    spaces_ = {NamespaceId{0}, cache_->open_namespace()};
    for (const size_t i : {0, 1}) cache_->set_tier_salt(spaces_[i], salt_of(spaces_[i]));
  }
  std::string salt_of(NamespaceId space) const { return space == spaces_[0] ? "a" : "b"; }

  // A prompt that begins like something known.
  Tokens make_prompt(const Args& a, NamespaceId space) const {
    std::vector<const Tokens*> sources;
    for (const Text& t : texts_) {
      if (t.space == space) sources.push_back(&t.tokens);
    }
    for (const Running& r : running_) {
      if (r.space == space) sources.push_back(&r.prompt);
    }
    Tokens prompt;
    if (!sources.empty() && a[1] % 8 != 0) prompt = *sources[a[1] % sources.size()];
    if (a[2] % 3 == 0 && !prompt.empty()) prompt.resize(a[2] % prompt.size() + 1);
    const int64_t more = 1 + a[3] % (5 * config_.block_tokens + 3);
    for (int64_t i = 0; i < more; ++i) {
      prompt.push_back(static_cast<int32_t>((static_cast<int64_t>(a[3]) >> (i % 12)) % 2));
    }
    if (static_cast<int64_t>(prompt.size()) > max_rows()) {
      prompt.resize(static_cast<size_t>(max_rows()));
    }
    return prompt;
  }

  std::vector<int64_t> points_of(NamespaceId space, const Tokens& tokens) const {
    std::vector<int64_t> points;
    for (const ChainBytes::Point& p : cache_->bytes_of(space, tokens).points) {
      points.push_back(p.tokens);
    }
    return points;
  }

  static std::vector<Fingerprint> prints_of(const Tokens& tokens) {
    std::vector<Fingerprint> prints;
    for (const uint64_t prefix : PrefixOracle::prefixes_of(tokens)) {
      prints.push_back({prefix, static_cast<int64_t>(prints.size())});
    }
    return prints;
  }

  void drop_text(size_t index, int64_t from) {
    const Text text = texts_[index];
    const Bytes before = cache_->bytes_of(text.space);
    const Bytes unique = cache_->bytes_of(text.space, text.tokens, from).unique;
    const Bytes freed = cache_->drop(text.space, text.tokens, from);
    expect(unique == freed, "dropping frees other bytes than it said before");
    expect(before - freed == cache_->bytes_of(text.space), "dropped other bytes than it says");
    if (from == 0) texts_.erase(texts_.begin() + static_cast<ptrdiff_t>(index));
  }

  // --- judging ---
  void judge(const Status& status, bool must_succeed) {
    expect(!policy_.is_wrong, "evicted for nothing");
    if (status.ok()) return;
    ++stats_.refused;
    expect(status.code() == Code::over_budget, "failed otherwise: " + status.message());
    expect(!must_succeed || config_.has_quotas, "refused what fits: " + status.message());
  }

  void remember(NamespaceId space, const Tokens& prompt, int64_t length) {
    if (texts_.size() >= kMaxTexts) drop_text(0, 0);
    Text text{space, Tokens(prompt.begin(), prompt.begin() + length), {}};
    text.prefixes = oracle_.prefixes_of(text.tokens);
    texts_.push_back(std::move(text));
  }

  void check() {
    cache_->check_invariants();
    const KvUsage usage = cache_->usage();
    const Bytes tier = usage.tier_memory + tier_.stats().memory;
    expect(memory_.committed() + (pressure_.size() + usage.metadata + tier).v == budget_.used().v,
           "accounts and memory differ");
    expect(cache_->counters().duplicates_differ == 0, "equal prefixes with unlike blocks");
    for (const Running& r : running_) {
      expect(cache_->length(r.id) == r.length, "wrong length");
      expect(cache_->replay_end(r.id) == (r.is_replaying() ? r.replay_end : 0), "wrong replay_end");
      expect(cache_->is_named(r.id), "lost its name");
    }
  }

  // Everybody who holds local rows: running sequences, and restart points of every known text.
  std::vector<PrefixOracle::Holder> holders(NamespaceId space,
                                            std::vector<std::vector<uint64_t>>& store) const {
    std::vector<PrefixOracle::Holder> found;
    store.reserve(running_.size() + loading_.size());
    for (const Running& r : running_) {
      if (r.space != space) continue;
      store.push_back(PrefixOracle::prefixes_of(r.prompt));
      if (!r.is_replaying()) found.push_back({&store.back(), r.length});
      for (const int64_t p : points_of(space, r.prompt)) found.push_back({&store.back(), p});
    }
    for (const Loading& l : loading_) {
      if (l.space != space) continue;
      store.push_back(PrefixOracle::prefixes_of(l.prompt));
      for (const int64_t p : points_of(space, l.prompt)) found.push_back({&store.back(), p});
    }
    for (const Text& t : texts_) {
      if (t.space != space) continue;
      for (const int64_t p : points_of(space, t.tokens)) found.push_back({&t.prefixes, p});
    }
    return found;
  }

  void compare_match(NamespaceId space, const Tokens& prompt, const PrefixMatch& match) {
    const int64_t B = config_.block_tokens, n = static_cast<int64_t>(prompt.size());
    const std::vector<uint64_t> prefixes = oracle_.prefixes_of(prompt);
    const int64_t known = cache_->bytes_of(space, prompt).tokens;
    std::vector<std::vector<uint64_t>> store;
    const PrefixOracle::Best best = oracle_.best(prefixes, known, holders(space, store));
    const int64_t limit = n == 0 ? 0 : (n - 1) / B * B;
    expect(match.first_computed() == best.first_computed, "not the best match");
    expect(match.heal_tokens > 0 || match.tokens == best.restart, "a boundary that is not valid");
    expect(match.tokens <= limit && match.tokens <= known, "a match of what is not known");
    const int64_t stored = match.first_computed() + match.lost;
    // With colliding hashes a prefix may pass for one that was evicted.
    expect(match.lost == 0 || config_.hash_mask != UINT64_MAX ||
               ever_.contains({space, prefixes[static_cast<size_t>(stored - 1)]}),
           "says that something is lost that never was there");
    const MissReason reason = match.first_computed() == limit ? MissReason::none
                              : match.lost == 0               ? MissReason::never_stored
                              : stored > known                ? MissReason::evicted
                                                              : MissReason::window_gone;
    expect(match.reason == reason, std::string("wrong reason: ") + miss_reason_name(match.reason));
  }

  void check_match(const PrefixOp& op) {
    const Args a = {op.args[3], op.args[0], op.args[1], op.args[2]};
    const NamespaceId space = spaces_[a[0] % 5 == 0 ? 1 : 0];
    const Tokens prompt = make_prompt(a, space);
    compare_match(space, prompt, cache_->match(space, prompt));
  }

  // What is known of one text, before an operation that must not lose any of it.
  Known probe(const PrefixOp& op) const {
    if (texts_.empty()) return {};
    const size_t index = op.args[2] % texts_.size();
    const ChainBytes chain = cache_->bytes_of(texts_[index].space, texts_[index].tokens);
    return {index, chain.tokens, chain.points.size()};
  }
  static bool may_lose(PrefixOpKind kind) {
    switch (kind) {
      case PrefixOpKind::read:
      case PrefixOpKind::decode:
      case PrefixOpKind::draft:
      case PrefixOpKind::abort:
      case PrefixOpKind::cross:
      case PrefixOpKind::mark:
      case PrefixOpKind::fork:
      case PrefixOpKind::pin:
      case PrefixOpKind::budget:
      case PrefixOpKind::pressure:
        return false;
      default:
        return true;
    }
  }
  void check_kept(const Known& before) {
    if (texts_.empty() || before.tokens == 0) return;
    const Text& text = texts_[before.text];
    expect(cache_->bytes_of(text.space, text.tokens).tokens >= before.tokens,
           "blocks went without an eviction");
  }

  const PrefixConfig config_;
  PrefixOracle oracle_;
  Policy policy_;
  Stats stats_;
  std::optional<std::string> failure_;
  FakeMemory memory_;
  Budget budget_{{0}};
  Reservation pressure_;
  MemoryTier tier_;
  Evictions evictions_;
  Bytes tier_memory_at_start_;
  std::unique_ptr<KvCache> cache_;
  std::vector<NamespaceId> spaces_;
  std::vector<Running> running_;
  std::vector<Text> texts_;
  std::vector<PinId> pins_;
  std::vector<Loading> loading_;
  std::set<std::pair<NamespaceId, uint64_t>> ever_;  // prefixes of blocks that were ever stored
};

}  // namespace weir

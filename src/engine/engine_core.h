#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "engine/conversations.h"
#include "engine/engine_stats.h"
#include "engine/request.h"
#include "engine/tenants.h"
#include "engine/work.h"
#include "kv/budget.h"
#include "kv/kv_cache.h"
#include "model/model.h"
#include "plan/kv_plan.h"

namespace weir {

struct EngineOptions {
  KvFormat kv;
  // Bytes of KV for every purpose. Never exceeded.
  Bytes kv_budget;
  int64_t max_context = 0;    // tokens of one sequence; 0: the model's own limit
  int64_t step_tokens = 512;  // most tokens computed in one step (-ub)
  int64_t max_running = 64;   // requests in a step
  // Keep what was read: find prompts in the prefix index, leave restart points. Without it every
  // request starts from nothing and leaves nothing behind.
  bool reuse = true;
  // Let a request in when its prompt fits, though its reply may not: the youngest then gives way
  // and comes back. Without it, only one whose reply fits beside the others'.
  bool overcommit = false;
  // Prompts are read in pieces that keep running replies going at least this often, as far as the
  // pace of the last steps tells; 0: pieces as large as a step.
  std::chrono::milliseconds max_gap{0};
  // Most tokens that going back to any point of a conversation should read again, as long as there
  // is room for the restart points that it takes; 0: no restart points but at ends and branches;
  // kAutoRewind: such that those of a conversation of full length take a quarter of the budget.
  static constexpr int64_t kAutoRewind = -1;
  int64_t rewind_bound = kAutoRewind;
  std::vector<TenantOptions> tenants;  // none: one, for everybody
  // Where idle conversations go that RAM has no room for, and come back from; must outlive the
  // engine. Null: nowhere.
  Tier* tier = nullptr;
  // What names the model there, see model_fingerprint(): equal strings must mean equal rows.
  std::string tier_model;
  // Idle conversations are written ahead until this much of the budget can be freed without loss;
  // negative: a quarter of it.
  Bytes tier_ready{-1};
  // Longest that a request waits for what the tier has of its prompt, before it reads it itself.
  std::chrono::milliseconds tier_wait{2000};
  int n_threads = 2;
  // Told in one line of what went wrong and was made good. On the engine's thread. May be empty.
  std::function<void(const std::string& warning)> on_warning;
};

// The engine without its thread: who owns this object calls it from one thread. A step takes one
// token of every running reply first, then pieces of prompts in what is left of step_tokens.
class EngineCore {
 public:
  // `model` and `device` must outlive it. Errors: invalid_input (KV type and head size do not fit),
  // over_budget (not even one token fits), io_error.
  static Result<std::unique_ptr<EngineCore>> create(const Model& model, KvDevice& device,
                                                    const EngineOptions& options);
  ~EngineCore();

  // Queues a request. Its events are called from step(). A request that can never run (prompt over
  // the context limit or the budget, bad sampling parameters) finishes as failed when its turn
  // comes, before any work.
  RequestId submit(Request request, RequestEvents events);
  // The same with an id of the caller's, who then gives all ids.
  void submit(RequestId id, std::chrono::steady_clock::time_point submitted, Request request,
              RequestEvents events);
  // Any thread. Errors: invalid_input, over_budget.
  Status check(const Request& request) const;
  void cancel(RequestId id);
  void cancel_all();

  // Admits what fits and computes one step. False when there was nothing to do.
  bool step();
  bool is_idle() const { return waiting_.empty() && running_.empty(); }
  // Takes in what the tier has finished and starts what should be written; step() does so, too.
  // True while something is under way. Never waits.
  bool tend_tier();
  // Whether the last step had nothing to compute until the tier has finished something.
  bool is_waiting_for_tier() const { return is_waiting_for_tier_; }

  EngineStats stats() const;
  Conversations& conversations() { return *conversations_; }
  const Tenants& tenants() const { return *tenants_; }
  KvCache& cache() { return *cache_; }
  const Budget& budget() const { return budget_; }
  // Another limit from now on: what no longer fits is evicted, then replies end for want of room.
  // Errors, which leave the old one: invalid_input above the budget it was made with, over_budget
  // if not even one token fits beside the tenants' floors.
  Status set_budget(Bytes limit);
  const Tokenizer& tokenizer() const { return tokenizer_; }
  int64_t max_context() const { return max_context_; }
  int64_t rewind_bound() const { return options_.rewind_bound; }  // as chosen, if automatic
  Executor& executor() { return executor_; }

  // Peak bytes that one sequence of `tokens` tokens takes, prompt steps of `step_tokens` included.
  Bytes need(int64_t tokens, int64_t step_tokens) const;
  // Most tokens that fit the budget alone, with the smallest steps.
  int64_t largest_context() const;

 private:
  using Clock = Work::Clock;
  using WorkList = std::list<std::unique_ptr<Work>>;

  struct EvictionCounter final : KvObserver {
    explicit EvictionCounter(EngineStats& stats) : stats_(stats) {}
    void on_evicted(const EvictionCandidate& unit) override {
      ++stats_.evictions;
      stats_.evicted_bytes += static_cast<uint64_t>(unit.unique_bytes);
    }
    EngineStats& stats_;
  };
  struct BatchItem {
    Work* work = nullptr;
    int64_t n_tokens = 0;
  };
  using Batch = std::vector<BatchItem>;

  EngineCore(const Model& model, KvDevice& device, const EngineOptions& options, KvPlanner planner);

  // --- admission (admission.cpp) ---
  void admit_waiting();
  Status holds_a_token(Bytes limit) const;
  Status prepare(Work& work);
  Bytes blocks_for(int64_t tokens) const;
  Bytes global_bytes(int64_t tokens) const;
  Bytes index_bytes(int64_t tokens) const;
  Bytes growth(const Work& work) const;
  Bytes promised_to_running() const;
  Bytes room_for_running(TenantId tenant) const;
  int64_t wished_tokens(const Work& work) const;
  bool fits_beside_running(const Work& work, const PrefixMatch& found) const;
  bool extend_grant(Work& work);
  bool has_place() const;
  void run(WorkList::iterator waiting);
  void preempt(Work& work);

  // --- what is found and left in the index (reuse.cpp) ---
  int64_t block_floor(int64_t tokens) const;
  PrefixMatch match(const Work& work) const;
  bool waits_for_prefix(const Work& work, const PrefixMatch& found);
  int64_t shared_with_running(const Work& work, const PrefixMatch& found) const;
  Status begin(Work& work, PrefixMatch found);
  Result<SeqId> resume_or_read_again(const Work& work, PrefixMatch& found);
  void plan_stops(Work& work, const PrefixMatch& found);
  int64_t next_stop(const Work& work) const;
  void mark_restart_points(Work& work);

  // --- the tier below RAM (tier_loads.cpp) ---
  bool waits_for_tier(Work& work);
  void end_load(Work& work);
  Bytes room_for_writing() const;

  // --- what a step computes (scheduling.cpp) ---
  Batch choose_batch();
  void add_prompts(Batch& batch, int64_t room);
  int64_t prompt_room(int64_t decoding) const;
  void end_replies_without_room();
  void learn_pace(const Batch& batch, double step_seconds);
  Result<Step> plan_within_budget(Batch& batch);
  bool shrink(Batch& batch);

  // --- counting (engine_stats.cpp) ---
  void count_step(Clock::time_point start, int64_t generated);
  void count_computed(const Work& work, int64_t n_tokens);
  void count_match(const Work& work, const PrefixMatch& found);
  void count_gap(const Work& work, Clock::time_point now);

  // --- one step (engine_core.cpp) ---
  Status compute(const Batch& batch, const Step& step, std::vector<Work*>& with_output);
  void deliver(const Batch& batch, std::span<Work* const> with_output);

  // --- replies (replies.cpp) ---
  void take_logits(Work& work, std::span<const float> logits);
  void finish_cancelled();
  void finish_late();
  void finish(Work& work, FinishReason reason, Status error = {});
  void let_go(Work& work);

  const Model& model_;
  EngineOptions options_;
  int64_t max_context_ = 0;
  Tokenizer tokenizer_;
  Budget budget_;
  KvDevice& device_;
  KvPlanner planner_;
  EngineStats counters_;  // the part since the start, and tokens_per_second
  EvictionCounter eviction_counter_{counters_};
  Clock::time_point last_step_end_;
  LoadIfFaster tier_policy_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Tenants> tenants_;
  std::unique_ptr<Conversations> conversations_;
  Executor executor_;
  WorkList waiting_, running_;       // both in order of arrival
  Bytes index_base_;                 // of the index before anything is in it
  int64_t restart_distance_ = 0;     // tokens between restart points on schedule; 0: none
  double decode_seconds_ = 0;        // of a step of replies alone
  double prompt_token_seconds_ = 0;  // of a token of a prompt
  uint64_t next_id_ = 1;
  bool is_waiting_for_tier_ = false;
  std::vector<float> logits_;
};

}  // namespace weir

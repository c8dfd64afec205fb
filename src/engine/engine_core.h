#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "engine/conversation.h"
#include "engine/engine_stats.h"
#include "engine/request.h"
#include "engine/text_stream.h"
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
  int n_threads = 2;
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

  EngineStats stats() const;
  ConversationStore& conversations() { return *conversations_; }
  KvCache& cache() { return *cache_; }
  const Budget& budget() const { return budget_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  int64_t max_context() const { return max_context_; }
  Executor& executor() { return executor_; }

  // Peak bytes that one sequence of `tokens` tokens takes, prompt steps of `step_tokens` included.
  Bytes need(int64_t tokens, int64_t step_tokens) const;
  // Most tokens that fit the budget alone, with the smallest steps.
  int64_t largest_context() const;

 private:
  using Clock = std::chrono::steady_clock;

  // A request from submission to its last event.
  struct Work {
    RequestId id{};
    Request request;
    RequestEvents events;
    Clock::time_point submitted, started, first_token, last_token;
    bool has_started = false;
    bool is_cancelled = false;
    bool was_let_in = false;
    int64_t most_committed = 0;  // before it had to give way: reading that again is recomputing
    std::optional<Sampler> sampler;
    TextStream stream{{}};
    SeqId seq{};
    bool has_seq = false;
    std::vector<Token> tokens;  // prompt and reply so far
    int64_t committed = 0;      // of tokens, in the KV
    Reply reply;

    int64_t pending() const { return static_cast<int64_t>(tokens.size()) - committed; }
    bool is_decoding() const { return pending() == 1 && !reply.tokens.empty(); }
  };
  struct EvictionCounter final : KvObserver {
    explicit EvictionCounter(EngineStats& stats) : stats_(stats) {}
    void on_evicted(SeqId, int64_t bytes_freed) override {
      ++stats_.evictions;
      stats_.evicted_bytes += static_cast<uint64_t>(bytes_freed);
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
  bool fits_beside_running(const Work& work) const;
  Status prepare(Work& work);
  bool is_conversation_busy(const Work& work) const;
  void start(Work& work);
  void preempt(Work& work);

  // --- counting (engine_stats.cpp) ---
  void count_step(Clock::time_point start, int64_t generated);
  void count_computed(const Work& work, int64_t n_tokens);

  // --- one step (engine_core.cpp) ---
  Batch choose_batch();
  Result<Step> plan_within_budget(Batch& batch);
  bool shrink(Batch& batch);
  Status compute(const Batch& batch, const Step& step, std::vector<Work*>& with_output);
  void deliver(const Batch& batch, std::span<Work* const> with_output);
  void finish_cancelled();
  void finish_late();
  void take_logits(Work& work, std::span<const float> logits);
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
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<ConversationStore> conversations_;
  Executor executor_;
  std::list<std::unique_ptr<Work>> waiting_;
  std::list<std::unique_ptr<Work>> running_;  // oldest first
  uint64_t next_id_ = 1;
  std::vector<float> logits_;
};

}  // namespace weir

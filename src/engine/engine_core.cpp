#include "engine/engine_core.h"

#include <algorithm>
#include <exception>

#include "geometry/geometry_draft.h"
#include "plan/rewind_plan.h"

namespace weir {

// Of one pool. More than any machine's memory, less than a process can have.
constexpr Bytes kMostAddressSpace{8 * 1024 * kGiB};

EngineCore::EngineCore(const Model& model, KvDevice& device, const EngineOptions& options,
                       KvPlanner planner)
    : model_(model),
      options_(options),
      tokenizer_(model.vocab()),
      budget_(options.kv_budget),
      device_(device),
      planner_(std::move(planner)),
      executor_(model, device, options.n_threads) {
  const int64_t trained = model.geometry().max_context;
  max_context_ = options.max_context > 0 ? options.max_context : trained;
  if (max_context_ == 0) max_context_ = 4096;  // neither the user nor the file says
}

EngineCore::~EngineCore() = default;

Result<std::unique_ptr<EngineCore>> EngineCore::create(const Model& model, KvDevice& device,
                                                       const EngineOptions& options) {
  if (options.step_tokens < 1 || options.step_tokens > kMaxTokens || options.max_running < 1 ||
      options.max_context < 0 || options.max_context > kMaxTokens) {
    return Status(Code::invalid_input, "step tokens, running requests or context out of range");
  }
  if (options.tier && options.tier_model.empty()) {
    return Status(Code::invalid_input,
                  "a tier needs a name of the model, by which it is told "
                  "from others there");
  }
  Result<KvPlanner> planner = KvPlanner::create(model.geometry(), options.kv);
  if (!planner) return planner.error();
  std::unique_ptr<EngineCore> core(new EngineCore(model, device, options, std::move(*planner)));
  KvCacheOptions cache_options;
  cache_options.address_space = std::min(options.kv_budget, kMostAddressSpace);
  cache_options.max_context = model.geometry().max_context;
  // What was evicted is remembered in a two-hundredth of the budget at most.
  cache_options.ghosts =
      options.reuse ? std::min(cache_options.ghosts, options.kv_budget.v / 1600) : 0;
  core->index_base_ = cache_options.ghosts * Bytes{sizeof(uint64_t)};
  Result<std::unique_ptr<KvCache>> cache =
      KvCache::create(core->planner_.layout(), core->budget_, device.memory(), cache_options);
  if (!cache) return cache.error();
  core->cache_ = std::move(*cache);
  core->cache_->add_observer(&core->eviction_counter_);
  int64_t& bound = core->options_.rewind_bound;
  if (bound == EngineOptions::kAutoRewind) {
    bound =
        rewind_bound_for(core->planner_.layout(), core->max_context_, {options.kv_budget.v / 4});
  }
  core->cache_->set_rewind_bound(bound);
  core->restart_distance_ = restart_distance(core->planner_.layout(), bound);
  if (options.tier) {
    const Bytes ready{options.tier_ready.v < 0 ? options.kv_budget.v / 4 : options.tier_ready.v};
    const Status status = core->cache_->set_tier({.tier = options.tier,
                                                  .policy = &core->tier_policy_,
                                                  .model = options.tier_model,
                                                  .ready = ready});
    if (!status.ok()) return status;
  }
  core->tenants_ = std::make_unique<Tenants>(*core->cache_, options.tenants);
  core->conversations_ = std::make_unique<Conversations>(*core->cache_, *core->tenants_);
  if (Status s = core->holds_a_token(options.kv_budget); !s.ok()) return s;
  return core;
}

Status EngineCore::holds_a_token(Bytes limit) const {
  const Bytes floors = tenants_->most_floors_of_others();
  if (need(1, 1) + floors <= limit) return {};
  std::string beside;
  if (floors.v > 0) beside = " beside the tenants' floors of " + format_bytes(floors);
  return Status(Code::over_budget, "a KV budget of " + format_bytes(limit) +
                                       " does not hold a single token of this model: it takes " +
                                       format_bytes(need(1, 1)) + beside);
}

RequestId EngineCore::submit(Request request, RequestEvents events) {
  const RequestId id{next_id_++};
  submit(id, Clock::now(), std::move(request), std::move(events));
  return id;
}

void EngineCore::submit(RequestId id, Clock::time_point submitted, Request request,
                        RequestEvents events) {
  auto work = std::make_unique<Work>();
  work->id = id;
  work->submitted = submitted;
  work->request = std::move(request);
  work->events = std::move(events);
  const Request& r = work->request;
  work->is_named = options_.reuse && tenants_->has(r.tenant) &&
                   Conversations::check_name(r.conversation_name).ok();
  if (work->is_named) conversations_->start(r.tenant, r.conversation_name);
  waiting_.push_back(std::move(work));
}

void EngineCore::cancel(RequestId id) {
  for (auto* list : {&waiting_, &running_}) {
    for (auto& work : *list) {
      if (work->id == id) work->is_cancelled = true;
    }
  }
}

void EngineCore::cancel_all() {
  for (auto* list : {&waiting_, &running_}) {
    for (auto& work : *list) work->is_cancelled = true;
  }
}

bool EngineCore::step() {
  is_waiting_for_tier_ = false;
  tend_tier();
  if (is_idle()) return false;
  finish_cancelled();
  finish_late();
  admit_waiting();
  Batch batch = choose_batch();
  if (batch.empty()) return true;
  is_waiting_for_tier_ = false;

  const Clock::time_point start = Clock::now();
  Result<Step> step = plan_within_budget(batch);
  if (!step && step.error().code() == Code::unavailable) {
    is_waiting_for_tier_ = true;
    return true;
  }
  if (!step) {
    // Only a fault of the system reaches this: every way to make room has been tried.
    ++counters_.failed_steps;
    for (const BatchItem& item : batch) finish(*item.work, FinishReason::failed, step.error());
    return true;
  }
  std::vector<Work*> with_output;
  if (Status s = compute(batch, *step, with_output); !s.ok()) {
    step->abort();
    ++counters_.failed_steps;
    for (const BatchItem& item : batch) finish(*item.work, FinishReason::failed, s);
    return true;
  }
  step->commit();
  count_step(start, std::ssize(with_output));
  learn_pace(batch, std::chrono::duration<double>(Clock::now() - start).count());
  deliver(batch, with_output);
  return true;
}

// Leaves the logits of `with_output`, in that order, in logits_. A library that throws (no memory
// for a step's buffers, mostly) fails the step and not the process.
Status EngineCore::compute(const Batch& batch, const Step& step, std::vector<Work*>& with_output) {
  try {
    std::vector<Token> tokens;
    std::vector<int64_t> positions;
    std::vector<int32_t> output_rows;
    for (size_t i = 0; i < batch.size(); ++i) {
      Work& work = *batch[i].work;
      if (!work.has_started) {
        work.has_started = true;
        work.started = Clock::now();
      }
      const auto first = work.tokens.begin() + work.committed;
      tokens.insert(tokens.end(), first, first + batch[i].n_tokens);
      const std::vector<int64_t> at = step.positions(i);
      positions.insert(positions.end(), at.begin(), at.end());
      if (batch[i].n_tokens == work.pending()) {
        output_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
        with_output.push_back(&work);
      }
    }
    logits_.resize(output_rows.size() * static_cast<size_t>(model_.n_vocab()));
    const StepInput input{.tokens = tokens, .positions = positions, .output_rows = output_rows};
    return executor_.compute(input, cache_->layout(), step, logits_);
  } catch (const std::exception& e) {
    return Status(Code::internal, std::string("the step could not be computed: ") + e.what());
  }
}

// The step is part of its sequences now: leaves restart points, tells listeners, and samples.
void EngineCore::deliver(const Batch& batch, std::span<Work* const> with_output) {
  for (const BatchItem& item : batch) {
    Work& work = *item.work;
    count_computed(work, item.n_tokens);
    work.committed += item.n_tokens;
    mark_restart_points(work);
    if (!work.reply.tokens.empty()) continue;
    work.reply.timings.prefill_tokens += item.n_tokens;
    if (work.events.on_prompt_progress) {
      const int64_t cached = work.reply.usage.cached_tokens;
      work.events.on_prompt_progress(std::max<int64_t>(0, work.committed - cached),
                                     work.prompt_length() - cached);
    }
  }
  const auto n_vocab = static_cast<size_t>(model_.n_vocab());
  for (size_t i = 0; i < with_output.size(); ++i) {
    take_logits(*with_output[i], std::span(logits_).subspan(i * n_vocab, n_vocab));
  }
}

Status EngineCore::set_budget(Bytes limit) {
  if (limit > options_.kv_budget) {
    return Status(Code::invalid_input, "the KV budget cannot be more than the " +
                                           format_bytes(options_.kv_budget) +
                                           " that weir was started with");
  }
  if (Status s = holds_a_token(limit); !s.ok()) return s;
  budget_.set_limit(limit);
  cache_->fit_to_budget();
  return {};
}

}  // namespace weir

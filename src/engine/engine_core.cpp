#include "engine/engine_core.h"

#include <algorithm>
#include <exception>

#include "geometry/geometry_draft.h"

namespace weir {

// Of one pool. More than any machine's memory, less than a process can have.
constexpr Bytes kMostAddressSpace{8 * 1024 * kGiB};

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::end_of_turn:
      return "end_of_turn";
    case FinishReason::stop_string:
      return "stop_string";
    case FinishReason::length:
      return "length";
    case FinishReason::context_full:
      return "context_full";
    case FinishReason::budget_full:
      return "budget_full";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::failed:
      return "failed";
  }
  return "";
}

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
  Result<KvPlanner> planner = KvPlanner::create(model.geometry(), options.kv);
  if (!planner) return planner.error();
  std::unique_ptr<EngineCore> core(new EngineCore(model, device, options, std::move(*planner)));
  KvCacheOptions cache_options;
  cache_options.address_space = std::min(options.kv_budget, kMostAddressSpace);
  cache_options.max_context = model.geometry().max_context;
  Result<std::unique_ptr<KvCache>> cache =
      KvCache::create(core->planner_.layout(), core->budget_, device.memory(), cache_options);
  if (!cache) return cache.error();
  core->cache_ = std::move(*cache);
  core->cache_->add_observer(&core->eviction_counter_);
  core->conversations_ = std::make_unique<ConversationStore>(*core->cache_);
  if (core->largest_context() < 1) {
    return Status(Code::over_budget, "a KV budget of " + format_bytes(options.kv_budget) +
                                         " does not hold a single token of this model: it takes " +
                                         format_bytes(core->need(1, 1)));
  }
  return core;
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
  if (is_idle()) return false;
  finish_cancelled();
  finish_late();
  admit_waiting();
  Batch batch = choose_batch();
  if (batch.empty()) return true;

  const Clock::time_point start = Clock::now();
  Result<Step> step = plan_within_budget(batch);
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
  deliver(batch, with_output);
  return true;
}

// Decode tokens first, so that a long prompt does not stop running replies; then prompts, oldest
// first, in what is left.
EngineCore::Batch EngineCore::choose_batch() {
  Batch batch;
  int64_t room = options_.step_tokens;
  for (auto& work : running_) {
    if (room > 0 && work->is_decoding()) {
      batch.push_back({work.get(), 1});
      --room;
    }
  }
  for (auto& work : running_) {
    if (room == 0 || work->is_decoding()) continue;
    const int64_t n = std::min(room, work->pending());
    batch.push_back({work.get(), n});
    room -= n;
  }
  return batch;
}

// Takes the step's memory. When it does not fit: smaller pieces of prompts, then no prompts, then
// the youngest request goes back to the queue; the last one left ends with what it has.
Result<Step> EngineCore::plan_within_budget(Batch& batch) {
  for (;;) {
    std::vector<StepItem> items;
    for (const BatchItem& item : batch) items.push_back({item.work->seq, item.n_tokens});
    Result<Step> step = cache_->plan_step(items);
    if (step.ok() || step.error().code() != Code::over_budget) return step;
    if (shrink(batch)) continue;

    Work* youngest = running_.back().get();
    std::erase_if(batch, [&](const BatchItem& item) { return item.work == youngest; });
    if (running_.size() > 1) {
      preempt(*youngest);
    } else {
      const bool has_reply = !youngest->reply.tokens.empty();
      finish(*youngest, has_reply ? FinishReason::budget_full : FinishReason::failed,
             has_reply ? Status{} : step.error());
    }
    if (batch.empty()) return step;
  }
}

bool EngineCore::shrink(Batch& batch) {
  bool has_shrunk = false;
  for (BatchItem& item : batch) {
    if (item.n_tokens > 1) {
      item.n_tokens = (item.n_tokens + 1) / 2;
      has_shrunk = true;
    }
  }
  if (has_shrunk) return true;
  const size_t before = batch.size();
  if (std::any_of(batch.begin(), batch.end(),
                  [](const BatchItem& i) { return i.work->is_decoding(); })) {
    std::erase_if(batch, [](const BatchItem& i) { return !i.work->is_decoding(); });
  }
  return batch.size() < before;
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

// The step is part of its sequences now: tells conversations and listeners, and samples.
void EngineCore::deliver(const Batch& batch, std::span<Work* const> with_output) {
  for (const BatchItem& item : batch) {
    Work& work = *item.work;
    const auto first = work.tokens.begin() + work.committed;
    count_computed(work, item.n_tokens);
    work.committed += item.n_tokens;
    const auto prompt_tokens = static_cast<int64_t>(work.request.prompt.size());
    if (work.request.conversation) {
      Conversation& conversation = *conversations_->find(*work.request.conversation);
      conversation.tokens.insert(conversation.tokens.end(), first, first + item.n_tokens);
      // The state before the reply: clients often strip or regenerate what follows.
      if (work.committed == prompt_tokens) conversations_->checkpoint(conversation);
    }
    if (!work.reply.tokens.empty()) continue;
    work.reply.timings.prefill_tokens += item.n_tokens;
    if (work.events.on_prompt_progress) {
      const int64_t cached = work.reply.usage.cached_tokens;
      work.events.on_prompt_progress(std::max<int64_t>(0, work.committed - cached),
                                     prompt_tokens - cached);
    }
  }
  const auto n_vocab = static_cast<size_t>(model_.n_vocab());
  for (size_t i = 0; i < with_output.size(); ++i) {
    take_logits(*with_output[i], std::span(logits_).subspan(i * n_vocab, n_vocab));
  }
}

void EngineCore::take_logits(Work& work, std::span<const float> logits) {
  if (work.request.max_new_tokens == 0) return finish(work, FinishReason::length);
  WEIR_CHECK(work.sampler);  // made before the request was let in
  Result<Token> token = work.sampler->sample(logits);
  if (!token) return finish(work, FinishReason::failed, token.error());
  work.last_token = Clock::now();
  if (work.reply.tokens.empty()) work.first_token = work.last_token;
  work.tokens.push_back(*token);
  work.reply.tokens.push_back(*token);
  ++work.reply.usage.completion_tokens;
  ++counters_.generated_tokens;

  const bool is_end = tokenizer_.is_end(*token);
  const auto& visible = work.request.visible_tokens;
  const bool is_visible = std::find(visible.begin(), visible.end(), *token) != visible.end();
  std::string text = is_end && !is_visible
                         ? std::string()
                         : work.stream.push(tokenizer_.piece(*token, is_visible));
  const bool ends_turn = is_end && !work.request.ignore_end;
  const bool is_full = work.reply.usage.completion_tokens == work.request.max_new_tokens;
  const bool ends = ends_turn || work.stream.is_stopped() || is_full ||
                    static_cast<int64_t>(work.tokens.size()) >= max_context_;
  if (ends && !work.stream.is_stopped()) text += work.stream.finish();
  work.reply.text += text;
  if (work.events.on_token) {
    std::optional<TokenLogprobs> logprobs;
    if (work.request.n_logprobs >= 0) {
      logprobs = logprobs_of(logits, *token, work.request.n_logprobs);
    }
    work.events.on_token({*token, text, logprobs ? &*logprobs : nullptr});
  }

  if (ends_turn) return finish(work, FinishReason::end_of_turn);
  if (work.stream.is_stopped()) return finish(work, FinishReason::stop_string);
  if (is_full) return finish(work, FinishReason::length);
  if (ends) return finish(work, FinishReason::context_full);
}

void EngineCore::finish_cancelled() {
  for (auto* list : {&waiting_, &running_}) {
    std::vector<Work*> cancelled;
    for (auto& work : *list) {
      if (work->is_cancelled) cancelled.push_back(work.get());
    }
    for (Work* work : cancelled) finish(*work, FinishReason::cancelled);
  }
}

// Who still waits when its time is over. Its caller may have a better place to ask.
void EngineCore::finish_late() {
  const Clock::time_point now = Clock::now();
  std::vector<Work*> late;
  for (auto& work : waiting_) {
    if (!work->was_let_in && now > work->request.start_before) late.push_back(work.get());
  }
  for (Work* work : late) {
    finish(*work, FinishReason::failed,
           Status(Code::unavailable, "the request could not be let in within its time; try later"));
  }
}

void EngineCore::finish(Work& work, FinishReason reason, Status error) {
  const auto ms = [](Clock::duration d) {
    return std::chrono::duration<double, std::milli>(d).count();
  };
  Reply& reply = work.reply;
  reply.reason = reason;
  ++counters_.requests_by_outcome[static_cast<size_t>(reason)];
  reply.error = std::move(error);
  if (std::string rest = work.stream.is_stopped() ? std::string() : work.stream.finish();
      !rest.empty()) {
    reply.text += rest;
    if (work.events.on_token && !reply.tokens.empty()) {
      work.events.on_token({.token = reply.tokens.back(), .text = rest, .is_new = false});
    }
  }
  if (!reply.tokens.empty()) {
    reply.timings.ttft_ms = ms(work.first_token - work.submitted);
    reply.timings.prefill_ms = ms(work.first_token - work.started);
    reply.timings.decode_ms = ms(work.last_token - work.first_token);
    reply.timings.decode_tokens = reply.usage.completion_tokens - 1;
  }
  reply.kv = cache_->usage();
  reply.kv_tokens = work.committed;
  let_go(work);

  // Out of its list before the last event, so that the event may submit again.
  std::unique_ptr<Work> ended;
  for (auto* list : {&waiting_, &running_}) {
    for (auto it = list->begin(); it != list->end(); ++it) {
      if (it->get() == &work) {
        ended = std::move(*it);
        list->erase(it);
        break;
      }
    }
    if (ended) break;
  }
  if (ended->events.on_finish) ended->events.on_finish(ended->reply);
}

// Returns the KV: to the conversation, which keeps it while there is room, or to the pools.
void EngineCore::let_go(Work& work) {
  if (!work.has_seq) return;
  work.has_seq = false;
  if (!work.request.conversation) {
    cache_->release(work.seq);
    return;
  }
  Conversation& conversation = *conversations_->find(*work.request.conversation);
  conversation.is_busy = false;
  cache_->set_evictable(conversation.seq, true);
}

}  // namespace weir

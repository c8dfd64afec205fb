// How a reply grows and ends.
#include <algorithm>

#include "engine/engine_core.h"

namespace weir {

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

void EngineCore::take_logits(Work& work, std::span<const float> logits) {
  if (work.request.max_new_tokens == 0) return finish(work, FinishReason::length);
  WEIR_CHECK(work.sampler);  // made before the request was let in
  Result<Token> token = work.sampler->sample(logits);
  if (!token) return finish(work, FinishReason::failed, token.error());
  const Clock::time_point now = Clock::now();
  if (work.reply.tokens.empty()) {
    work.first_token = now;
  } else {
    count_gap(work, now);
  }
  work.last_token = now;
  work.tokens.push_back(*token);
  work.reply.tokens.push_back(*token);
  ++work.reply.usage.completion_tokens;
  ++counters_.generated_tokens;

  const bool is_end = tokenizer_.is_end(*token);
  const auto& visible = work.request.visible_tokens;
  const bool is_visible = std::find(visible.begin(), visible.end(), *token) != visible.end();
  std::string text = is_end && !is_visible ? std::string()
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
  if (work.has_seq) reply.kv = cache_->usage_of(work.seq);
  reply.kv_tokens = work.committed;
  let_go(work);
  if (work.is_named) conversations_->end(work.request.tenant, work.request.conversation_name);

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

// Gives the sequence up; its full blocks stay in the index as long as there is room.
void EngineCore::let_go(Work& work) {
  end_load(work);
  if (!work.has_seq) return;
  work.has_seq = false;
  if (options_.reuse) cache_->note_leave(work.seq);
  cache_->release(work.seq);
  if (!work.is_named || work.committed == 0) return;
  work.tokens.resize(static_cast<size_t>(work.committed));
  conversations_->record(work.request.tenant, work.request.conversation_name,
                         std::move(work.tokens));
}

}  // namespace weir

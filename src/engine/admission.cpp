// Who may start: a request proves that its prompt fits the budget, or waits, or is refused.
#include <algorithm>

#include "engine/engine_core.h"

namespace weir {

Bytes EngineCore::need(int64_t tokens, int64_t step_tokens) const {
  return planner_.plan({.tokens = tokens, .n_sequences = 1, .ubatch = step_tokens}).total();
}

int64_t EngineCore::largest_context() const {
  const PlanLoad alone{.tokens = 0, .n_sequences = 1, .ubatch = 1};
  return std::min(max_context_, planner_.most_tokens(budget_.limit(), alone));
}

Status EngineCore::check(const Request& request) const {
  const int64_t n = static_cast<int64_t>(request.prompt.size());
  if (n == 0) return Status(Code::invalid_input, "the prompt is empty");
  for (const Token token : request.prompt) {
    if (token < 0 || token >= model_.n_vocab()) {
      return Status(Code::invalid_input, "token " + std::to_string(token) +
                                             " is not in the vocabulary of " +
                                             std::to_string(model_.n_vocab()));
    }
  }
  if (n >= max_context_) {
    return Status(Code::invalid_input, "the prompt has " + std::to_string(n) +
                                           " tokens and the context holds " +
                                           std::to_string(max_context_) +
                                           ", one of them for the reply; shorten it or raise -c");
  }
  if (const Bytes least = need(n, 1); least > budget_.limit()) {
    return Status(Code::over_budget, "a prompt of " + std::to_string(n) + " tokens needs " +
                                         format_bytes(least) + " of KV and the budget is " +
                                         format_bytes(budget_.limit()) +
                                         "; the largest context that fits is " +
                                         std::to_string(largest_context()) + " tokens");
  }
  return {};
}

// Everything that can be wrong with a request, before it takes any memory. Again for one that had
// to wait: its conversation may have been closed meanwhile.
Status EngineCore::prepare(Work& work) {
  if (work.request.conversation && !conversations_->find(*work.request.conversation)) {
    return Status(Code::invalid_input, "there is no such conversation");
  }
  if (work.sampler) return {};
  if (Status s = check(work.request); !s.ok()) return s;
  SamplingParams sampling = work.request.sampling;
  if (sampling.repeat_last_n == -1) sampling.repeat_last_n = static_cast<int32_t>(max_context_);
  Result<Sampler> sampler = Sampler::create(sampling, tokenizer_);
  if (!sampler) return sampler.error();
  work.sampler = std::move(*sampler);
  for (const Token token : work.request.prompt) work.sampler->accept_prompt(token);
  work.stream = TextStream(work.request.stop);
  work.tokens = work.request.prompt;
  work.reply.usage.prompt_tokens = static_cast<int64_t>(work.request.prompt.size());
  return {};
}

bool EngineCore::fits_beside_running(const Work& work) const {
  if (running_.empty()) return true;
  Bytes total = need(static_cast<int64_t>(work.tokens.size()), 1);
  for (const auto& other : running_) total += need(static_cast<int64_t>(other->tokens.size()), 1);
  return total <= budget_.limit();
}

// First come, first served: who does not fit yet is not overtaken by a smaller request, or a large
// one could wait for ever. Only a request whose conversation is still replying lets others pass.
void EngineCore::admit_waiting() {
  for (auto it = waiting_.begin();
       it != waiting_.end() && static_cast<int64_t>(running_.size()) < options_.max_running;) {
    const auto next = std::next(it);
    Work& work = **it;
    if (Status s = prepare(work); !s.ok()) {
      finish(work, FinishReason::failed, s);
    } else if (!is_conversation_busy(work)) {
      if (!fits_beside_running(work)) return;
      start(work);
      running_.splice(running_.end(), waiting_, it);
    }
    it = next;
  }
}

bool EngineCore::is_conversation_busy(const Work& work) const {
  return work.request.conversation && conversations_->find(*work.request.conversation)->is_busy;
}

// Gives the request its sequence: the conversation's, cut back to the common prefix, or a new one.
void EngineCore::start(Work& work) {
  if (!work.request.conversation) {
    work.seq = cache_->create_sequence();
    work.committed = 0;
  } else {
    Conversation& conversation = *conversations_->find(*work.request.conversation);
    work.committed = conversations_->rewind_to(conversation, work.tokens);
    conversations_->checkpoint(conversation);
    conversation.is_busy = true;
    cache_->set_evictable(conversation.seq, false);
    work.seq = conversation.seq;
  }
  work.has_seq = true;
  // What a request that was sent back finds again is its own work, not reuse.
  if (!work.has_started) work.reply.usage.cached_tokens = work.committed;
  if (work.was_let_in) return;
  work.was_let_in = true;
  counters_.prompt_tokens += work.request.prompt.size();
  counters_.cached_tokens += static_cast<uint64_t>(work.committed);
  ++(work.committed > 0 ? counters_.requests_with_hit : counters_.requests_with_miss);
  if (work.events.on_start) work.events.on_start();
}

// Back to the front of the queue without its KV; what it has said so far is kept and read again.
void EngineCore::preempt(Work& work) {
  if (work.request.conversation) {
    let_go(work);
  } else {
    cache_->release(work.seq);
    work.has_seq = false;
  }
  ++counters_.preemptions;
  work.most_committed = std::max(work.most_committed, work.committed);
  work.committed = 0;
  const auto it = std::find_if(running_.begin(), running_.end(),
                               [&](const auto& w) { return w.get() == &work; });
  waiting_.splice(waiting_.begin(), running_, it);
}

}  // namespace weir

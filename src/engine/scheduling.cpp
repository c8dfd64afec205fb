// What a step computes: one token of every running reply first, then pieces of prompts in what is
// left; and what gives way when the step's memory does not fit.
#include <algorithm>

#include "engine/engine_core.h"

namespace weir {
namespace {

// The least of a prompt that a step takes beside running replies: below, the weights are read for
// too little.
constexpr int64_t kSmallestPiece = 16;
// How much a faster step counts in the pace. A slower one counts at once: the next may be as slow.
constexpr double kNewWeight = 0.3;
// Of the gap that is allowed, what is planned for: steps of the same shape differ by a tenth.
constexpr double kPlannedGap = 0.85;

double seconds(Work::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

// Prompt tokens that a step may take. Beside running replies, as many as keep their next token
// within max_gap, by the pace of the last steps.
int64_t EngineCore::prompt_room(int64_t decoding) const {
  const int64_t room = std::max<int64_t>(0, options_.step_tokens - decoding);
  const double gap = seconds(options_.max_gap);
  if (decoding == 0 || gap == 0 || prompt_token_seconds_ == 0) return room;
  const double tokens = std::max(0.0, kPlannedGap * gap - decode_seconds_) / prompt_token_seconds_;
  return std::clamp(static_cast<int64_t>(tokens), std::min(room, kSmallestPiece), room);
}

EngineCore::Batch EngineCore::choose_batch() {
  end_replies_without_room();
  Batch batch;
  for (auto& work : running_) {
    if (work->is_decoding() && std::ssize(batch) < options_.step_tokens)
      batch.push_back({work.get(), 1});
  }
  add_prompts(batch, prompt_room(std::ssize(batch)));
  return batch;
}

// The prompt with the least to read gets up to half of the room, so that a short one does not wait
// for a long one to end; the rest goes to the oldest first. A step of a sequence ends where a
// restart point is wanted.
void EngineCore::add_prompts(Batch& batch, int64_t room) {
  std::vector<Work*> prompts;
  for (auto& work : running_) {
    if (!work->is_decoding()) prompts.push_back(work.get());
  }
  const auto take = [&](Work& work, int64_t most) {
    const int64_t n = std::min(most, next_stop(work) - work.committed);
    if (n > 0) batch.push_back({&work, n});
    room -= n;
  };
  const auto shortest =
      std::min_element(prompts.begin(), prompts.end(),
                       [](const Work* a, const Work* b) { return a->pending() < b->pending(); });
  if (prompts.size() > 1 && shortest != prompts.begin()) {
    Work* first = *shortest;
    prompts.erase(shortest);
    take(*first, (room + 1) / 2);
  }
  for (Work* work : prompts) take(*work, room);
}

void EngineCore::end_replies_without_room() {
  std::vector<Work*> without_room;
  for (auto& work : running_) {
    if (work->is_decoding() && !extend_grant(*work)) without_room.push_back(work.get());
  }
  for (Work* work : without_room) finish(*work, FinishReason::budget_full);
}

// Learns the pace of prompts and replies from a step that has ended.
void EngineCore::learn_pace(const Batch& batch, double step_seconds) {
  int64_t decoding = 0, prompt = 0;
  for (const BatchItem& item : batch)
    (item.work->is_decoding() ? decoding : prompt) += item.n_tokens;
  const auto learn = [](double& pace, double seen) {
    pace = seen > pace ? seen : pace + kNewWeight * (seen - pace);
  };
  if (prompt == 0 && decoding > 0) learn(decode_seconds_, step_seconds);
  // Beside a prompt there is only an upper bound.
  if (decoding > 0) decode_seconds_ = std::min(decode_seconds_, step_seconds);
  if (prompt >= kSmallestPiece) {
    const double own =
        std::max(0.1 * step_seconds, step_seconds - (decoding ? decode_seconds_ : 0));
    learn(prompt_token_seconds_, own / static_cast<double>(prompt));
  }
}

// Takes the step's memory. When it does not fit: smaller pieces of prompts, then no prompts, then
// the youngest request goes back to the queue; the last one left ends with what it has. While
// blocks are on their way to or from the tier, it waits for their memory before anybody gives way.
Result<Step> EngineCore::plan_within_budget(Batch& batch) {
  for (;;) {
    std::vector<StepItem> items;
    for (const BatchItem& item : batch) {
      const std::span<const Token> tokens(item.work->tokens);
      items.push_back({.seq = item.work->seq,
                       .n_tokens = item.n_tokens,
                       .tokens = tokens.subspan(static_cast<size_t>(item.work->committed),
                                                static_cast<size_t>(item.n_tokens))});
    }
    Result<Step> step = cache_->plan_step(items);
    if (step.ok() || step.error().code() != Code::over_budget) return step;
    if (shrink(batch)) continue;
    if (cache_->has_tier_work() && cache_->usage().staging.v > 0)
      return Status(Code::unavailable, "the tier still uses the memory that the step needs");

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

}  // namespace weir

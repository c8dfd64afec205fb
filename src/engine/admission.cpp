// Who may start: a request proves that its prompt and its reply fit the budget, or waits, or is
// refused.
#include <algorithm>

#include "engine/engine_core.h"

namespace weir {
namespace {

// What a reply of no stated length is taken to need. It may go on beyond, while there is room.
constexpr int64_t kReplyOfNoLimit = 1024;

}  // namespace

Bytes EngineCore::index_bytes(int64_t tokens) const {
  if (!options_.reuse) return {};
  return index_base_ + tokens / cache_->layout().format.block_tokens * cache_->bytes_per_node();
}

Bytes EngineCore::need(int64_t tokens, int64_t step_tokens) const {
  return planner_.plan({.tokens = tokens, .n_sequences = 1, .ubatch = step_tokens}).total() +
         index_bytes(tokens);
}

int64_t EngineCore::largest_context() const {
  int64_t low = 0, high = max_context_;  // the need never falls as tokens are added
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (need(middle, 1) <= budget_.limit()) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

Status EngineCore::check(const Request& request) const {
  if (!tenants_->has(request.tenant))
    return Status(Code::invalid_input,
                  "tenant " + std::to_string(request.tenant) + " is not one of this engine's");
  if (!request.conversation_name.empty()) {
    if (Status s = Conversations::check_name(request.conversation_name); !s.ok()) return s;
  }
  const int64_t n = std::ssize(request.prompt);
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

// Everything that can be wrong with a request, before it takes any memory.
Status EngineCore::prepare(Work& work) {
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
  work.reply.usage.prompt_tokens = work.prompt_length();
  if (options_.reuse) {
    cache_->note_return(tenants_->name_space(work.request.tenant), work.request.prompt);
  }
  return {};
}

// --- the proof ----------------------------------------------------------------------------------

// Blocks of one sequence on its way to `tokens`, in steps of one token.
Bytes EngineCore::blocks_for(int64_t tokens) const {
  const KvPlan plan = planner_.plan({.tokens = tokens, .n_sequences = 1, .ubatch = 1});
  return plan.resident() + plan.headroom;
}

// What a running request may still take, up to what it was granted.
Bytes EngineCore::growth(const Work& work) const {
  const Bytes most = blocks_for(std::max(work.granted, work.length()));
  return std::max(Bytes{}, most - cache_->usage_of(work.seq).resident());
}

Bytes EngineCore::promised_to_running() const {
  Bytes sum = budget_.used(Tag::live_global) + budget_.used(Tag::live_local) +
              budget_.used(Tag::step_headroom);
  for (const auto& work : running_) sum += growth(*work);
  return sum;
}

// What running requests can have: all but what is never evicted for them. Idle blocks, restart
// points, pins at last, and memory that waits to be given back make room. Pools round up to their
// extents.
Bytes EngineCore::room_for_running(TenantId tenant) const {
  Bytes room = budget_.limit() - tenants_->floors_of_others(tenant);
  for (const Tag tag : {Tag::metadata, Tag::staging_in, Tag::staging_out, Tag::tier_memory})
    room -= budget_.used(tag);
  for (const GroupPlan& group : planner_.plan({}).groups) room -= group.extent;
  return room;
}

// How far a request should be able to grow before it starts. With overcommit: its prompt.
int64_t EngineCore::wished_tokens(const Work& work) const {
  if (options_.overcommit) return work.length() + 1;
  const int64_t reply =
      work.request.max_new_tokens < 0 ? kReplyOfNoLimit : work.request.max_new_tokens;
  const int64_t most = std::min(max_context_, largest_context());
  return std::clamp(work.prompt_length() + reply, std::min(work.length() + 1, most), most);
}

bool EngineCore::fits_beside_running(const Work& work, const PrefixMatch& found) const {
  if (running_.empty()) return true;  // check has seen that it fits alone
  Bytes sum = promised_to_running();
  sum += blocks_for(wished_tokens(work)) - global_bytes(shared_with_running(work, found));
  return sum <= room_for_running(work.request.tenant);
}

Bytes EngineCore::global_bytes(int64_t tokens) const {
  return planner_.plan({.tokens = tokens, .n_sequences = 1, .ubatch = 1}).global;
}

// A reply that has used up what it was granted asks for as much again as fits. False: it ends here.
bool EngineCore::extend_grant(Work& work) {
  if (options_.overcommit || work.length() <= work.granted) return true;
  const int64_t B = cache_->layout().format.block_tokens;
  const int64_t before = work.granted;
  for (const int64_t more : {kReplyOfNoLimit, 4 * B, B}) {
    work.granted = std::min(before + more, max_context_);
    if (promised_to_running() <= room_for_running(work.request.tenant)) return true;
  }
  work.granted = before;
  return running_.size() == 1;  // alone it may use what there is, to the last block
}

// --- the queue ----------------------------------------------------------------------------------

// First come, first served: who does not fit yet is not overtaken by a smaller request, or a large
// one could wait for ever. Only those that wait for another's prefix or for the tier let others
// pass.
void EngineCore::admit_waiting() {
  for (auto it = waiting_.begin(); it != waiting_.end() && has_place();) {
    const auto next = std::next(it);
    Work& work = **it;
    Status status = prepare(work);
    if (status.ok()) {
      // What comes for it is in the accounts already, and would keep it out.
      if (work.load && waits_for_tier(work)) {
        it = next;
        continue;
      }
      PrefixMatch found = match(work);
      if (waits_for_prefix(work, found)) {
        it = next;
        continue;
      }
      if (!fits_beside_running(work, found)) return;
      if (waits_for_tier(work)) {
        it = next;
        continue;
      }
      if (options_.tier) found = match(work);
      work.granted = wished_tokens(work);
      status = begin(work, found);
      // No room even for the open blocks' copies: those who run will leave some.
      if (status.code() == Code::over_budget && !running_.empty()) return;
    }
    if (status.ok()) {
      run(it);
    } else {
      finish(work, FinishReason::failed, status);
    }
    it = next;
  }
}

bool EngineCore::has_place() const { return std::ssize(running_) < options_.max_running; }

// Running requests are in order of arrival: the oldest always finishes, and one that was sent back
// is as old as it was.
void EngineCore::run(WorkList::iterator waiting) {
  const auto younger = std::find_if(running_.begin(), running_.end(),
                                    [&](const auto& other) { return other->id > (*waiting)->id; });
  running_.splice(younger, waiting_, waiting);
}

// Back to the queue without its sequence, in order of arrival; what it has said so far is kept, and
// its blocks stay in the index as long as there is room.
void EngineCore::preempt(Work& work) {
  ++counters_.preemptions;
  work.most_committed = std::max(work.most_committed, work.committed);
  cache_->release(work.seq);
  work.has_seq = false;
  work.has_asked_tier = false;
  work.committed = 0;
  const auto it = std::find_if(running_.begin(), running_.end(),
                               [&](const auto& w) { return w.get() == &work; });
  const auto younger = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const auto& other) { return other->id > work.id; });
  waiting_.splice(younger, running_, it);
}

}  // namespace weir

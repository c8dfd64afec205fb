// Finding what is known of a prompt, and starting a sequence on it.
#include <algorithm>
#include <utility>

#include "kv/boundaries.h"
#include "kv/kv_cache_impl.h"

namespace weir {

const char* miss_reason_name(MissReason reason) {
  switch (reason) {
    case MissReason::none:
      return "none";
    case MissReason::never_stored:
      return "never_stored";
    case MissReason::evicted:
      return "evicted";
    case MissReason::window_gone:
      return "window_gone";
    case MissReason::load_failed:
      return "load_failed";
  }
  return "unknown";
}

PrefixMatch KvCache::match(NamespaceId id, std::span<const int32_t> prompt) const {
  const Impl& impl = *impl_;
  const size_t B = static_cast<size_t>(impl.block_tokens());
  // The last token is always computed: its logits are wanted.
  const size_t limit = prompt.empty() ? 0 : (prompt.size() - 1) / B * B;
  Boundaries boundaries(impl.layout);
  const PrefixNode* node = impl.space(id).root;
  size_t at = 0;
  for (; at < limit; at += B) {
    const PrefixNode* next = impl.index.child(*node, prompt.subspan(at, B));
    if (!next) break;
    node = next;
    boundaries.pass([&](size_t g) { return node->blocks[g] != PrefixNode::kNoBlock; });
  }
  // A node has all its global blocks, so the path ends where the global groups do.
  const int64_t global = static_cast<int64_t>(at);
  PrefixMatch match;
  const Boundaries::Start start = boundaries.best();
  match.group_tokens = std::move(boundaries.group_tokens);
  match.tokens = start.tokens;
  match.heal_tokens = start.heal_tokens;
  match.common = global + impl.index.common_with_child(*node, prompt.subspan(at));

  uint64_t hash = node->path_hash;
  int64_t stored = global;  // once; the memory of it has gaps
  for (; at < limit; at += B) {
    hash = impl.index.hash_after(hash, prompt.subspan(at, B));
    if (impl.ghosts.knows(hash)) stored = static_cast<int64_t>(at + B);
  }
  match.lost = stored - match.first_computed();
  if (match.first_computed() == static_cast<int64_t>(limit)) {
    match.reason = MissReason::none;
  } else if (match.lost == 0) {
    match.reason = MissReason::never_stored;
  } else {
    match.reason = stored > global ? MissReason::evicted : MissReason::window_gone;
  }
  return match;
}

Result<SeqId> KvCache::resume(NamespaceId id, std::span<const int32_t> prompt,
                              const PrefixMatch& match) {
  WEIR_CHECK(impl_->step.empty());
  Impl& impl = *impl_;
  const int64_t B = impl.block_tokens();
  WEIR_CHECK(match.tokens % B == 0 && match.tokens <= static_cast<int64_t>(prompt.size()));
  if (impl.resume_fault && match.tokens > 0) {
    if (Status fault = impl.resume_fault(); !fault.ok()) return fault;
  }
  PrefixNode& node =
      impl.index.find(*impl.space(id).root, prompt.first(static_cast<size_t>(match.tokens)));
  if (node.end() != match.tokens || (match.heal_tokens == 0 && !impl.has_run(node))) {
    return Status(Code::not_found, "the prefix of " + std::to_string(match.tokens) +
                                       " tokens is no longer in the KV store; match it again");
  }
  for (size_t g = 0; g < impl.n_groups(); ++g) {
    const int64_t needed = first_needed_block(impl.retention(g), match.tokens, B) * B;
    WEIR_CHECK(match.heal_tokens == 0 || !impl.layout.is_local(impl.layout.groups[g]) ||
               match.first_computed() <= needed);
  }
  const SeqId seq = create_sequence(id);
  Sequence& s = impl.at(seq);
  impl.enter_path(s, node);
  s.length = match.first_computed();
  if (match.heal_tokens > 0) {
    s.replay_begin = s.length;
    s.replay_end = match.tokens;
  }
  impl.share_path(s);
  impl.touch(s);
  if (node.restart) node.restart->last_use = impl.clock;
  return seq;
}

// Whether a prompt goes on where an idle prefix ends, in the store or in its memory of what it gave
// up. One that leaves a known path earlier is a new branch.
void KvCache::note_return(NamespaceId id, std::span<const int32_t> prompt) {
  Impl& impl = *impl_;
  const auto B = static_cast<size_t>(impl.block_tokens());
  const PrefixNode& known = impl.index.find(*impl.space(id).root, prompt);
  std::optional<uint64_t> last_use;
  if (known.is_idle_leaf()) last_use = known.last_use;
  uint64_t hash = known.path_hash;
  for (size_t at = static_cast<size_t>(known.end()); at + B <= prompt.size(); at += B) {
    hash = impl.index.hash_after(hash, prompt.subspan(at, B));
    if (impl.ghosts.knows(hash)) last_use = impl.ghosts.last_use(hash, impl.clock);
  }
  if (last_use) impl.returns.come_back(*last_use, impl.clock);
}

void KvCache::note_leave(SeqId seq) {
  const Sequence& s = impl_->at(seq);
  if (s.is_named() && s.length > 0) impl_->returns.leave(impl_->clock);
}

// Fills the tables of a sequence that starts on known blocks.
void KvCache::Impl::share_path(Sequence& s) {
  for (size_t g = 0; g < n_groups(); ++g) {
    const bool is_local = layout.is_local(layout.groups[g]);
    const int64_t end = is_local && s.is_replaying() ? s.length / block_tokens() : end_block(s, g);
    const int64_t first = is_local && s.is_replaying()
                              ? end
                              : first_needed_block(retention(g), s.length, block_tokens());
    std::vector<uint32_t> slots;
    for (const PrefixNode* n = s.tail; n->index >= first; n = n->parent) {
      if (n->index < end) slots.push_back(n->blocks[g]);
    }
    s.tables[g].start_at(first);
    for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
      pools[g]->share(*slot);
      s.tables[g].push_back(*slot);
    }
  }
}

void KvCache::set_resume_fault(std::function<Status()> fault) {
  impl_->resume_fault = std::move(fault);
}

int64_t KvCache::replay_end(SeqId seq) const { return impl_->at(seq).replay_end; }

}  // namespace weir

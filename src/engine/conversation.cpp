#include "engine/conversation.h"

#include <algorithm>

namespace weir {

ConversationId ConversationStore::open() {
  const ConversationId id{next_id_++};
  conversations_[id];
  return id;
}

Conversation* ConversationStore::find(ConversationId id) {
  const auto found = conversations_.find(id);
  return found == conversations_.end() ? nullptr : &found->second;
}

Result<ConversationId> ConversationStore::fork(ConversationId id) {
  Conversation* from = find(id);
  if (!from) return Status(Code::invalid_input, "there is no such conversation");
  if (from->is_busy)
    return Status(Code::invalid_input, "the conversation is replying; wait or cancel");
  Conversation copy;
  if (from->has_seq && cache_.exists(from->seq)) {
    Result<SeqId> seq = cache_.fork(from->seq);
    if (!seq) return seq.error();
    copy.seq = *seq;
    copy.has_seq = true;
    copy.tokens = from->tokens;
    cache_.set_evictable(copy.seq, true);
    drop_lost_checkpoints(*from);
    for (const Conversation::Checkpoint& checkpoint : from->checkpoints) {
      // Making room for one copy may have taken another checkpoint.
      if (!cache_.exists(checkpoint.seq)) continue;
      Result<SeqId> kept = cache_.fork(checkpoint.seq);
      if (!kept) break;  // no room: the copy can do without
      cache_.set_evictable(*kept, true);
      copy.checkpoints.push_back({checkpoint.length, *kept});
    }
  }
  const ConversationId forked{next_id_++};
  conversations_[forked] = std::move(copy);
  return forked;
}

Status ConversationStore::close(ConversationId id) {
  Conversation* conversation = find(id);
  if (!conversation) return Status(Code::invalid_input, "there is no such conversation");
  if (conversation->is_busy) {
    return Status(Code::invalid_input, "the conversation is replying; wait or cancel");
  }
  release_all(*conversation);
  conversations_.erase(id);
  return {};
}

void ConversationStore::release_all(Conversation& conversation) {
  for (const auto& checkpoint : conversation.checkpoints) release_if_there(checkpoint.seq);
  conversation.checkpoints.clear();
  if (conversation.has_seq) release_if_there(conversation.seq);
  conversation.has_seq = false;
  conversation.tokens.clear();
}

// Sequences that may be evicted are gone when something else needed their room.
void ConversationStore::release_if_there(SeqId seq) {
  if (cache_.exists(seq)) cache_.release(seq);
}

void ConversationStore::drop_lost_checkpoints(Conversation& conversation) {
  std::erase_if(conversation.checkpoints,
                [&](const auto& checkpoint) { return !cache_.exists(checkpoint.seq); });
}

int64_t ConversationStore::rewind_to(Conversation& conversation, std::span<const Token> prompt) {
  drop_lost_checkpoints(conversation);
  if (conversation.has_seq && !cache_.exists(conversation.seq)) {
    conversation.has_seq = false;  // evicted while idle
  }

  const auto& held = conversation.tokens;
  const int64_t limit =
      std::min<int64_t>(static_cast<int64_t>(held.size()), static_cast<int64_t>(prompt.size()) - 1);
  const int64_t common =
      std::mismatch(held.begin(), held.begin() + limit, prompt.begin()).first - held.begin();

  int64_t reused = 0;
  if (conversation.has_seq && common > 0 && cache_.rewind(conversation.seq, common).ok()) {
    reused = common;
  } else {
    if (conversation.has_seq) cache_.release(conversation.seq);
    reused = restart_from_checkpoint(conversation, common);
  }
  // Checkpoints past the common part belong to another future.
  while (!conversation.checkpoints.empty() && conversation.checkpoints.back().length > common) {
    release_if_there(conversation.checkpoints.back().seq);
    conversation.checkpoints.pop_back();
  }
  conversation.tokens.resize(static_cast<size_t>(reused));
  return reused;
}

// The latest checkpoint that covers `common` tokens or can be cut back to them exactly, or an empty
// sequence. Returns the length reached.
int64_t ConversationStore::restart_from_checkpoint(Conversation& conversation, int64_t common) {
  conversation.has_seq = true;
  for (auto it = conversation.checkpoints.rbegin(); it != conversation.checkpoints.rend(); ++it) {
    const int64_t length = std::min(it->length, common);
    if (length == 0 || !cache_.exists(it->seq) ||
        (it->length > common && cache_.min_rewind(it->seq) > common))
      continue;
    Result<SeqId> seq = cache_.fork(it->seq);
    if (!seq) break;  // no room for a copy of the open blocks
    if (!cache_.rewind(*seq, length).ok()) {
      cache_.release(*seq);
      continue;
    }
    conversation.seq = *seq;
    return length;
  }
  conversation.seq = cache_.create_sequence();
  return 0;
}

void ConversationStore::checkpoint(Conversation& conversation) {
  const int64_t length = static_cast<int64_t>(conversation.tokens.size());
  if (length == 0 || !conversation.has_seq) return;
  drop_lost_checkpoints(conversation);
  if (!conversation.checkpoints.empty() && conversation.checkpoints.back().length >= length) return;
  Result<SeqId> seq = cache_.fork(conversation.seq);
  if (!seq) return;  // no room: the conversation can do without
  cache_.set_evictable(*seq, true);
  conversation.checkpoints.push_back({length, *seq});
  thin_checkpoints(conversation);
}

void ConversationStore::thin_checkpoints(Conversation& conversation) {
  auto& points = conversation.checkpoints;
  while (points.size() > kMaxCheckpoints) {
    size_t least = 1;
    const auto gap = [&](size_t i) { return points[i + 1].length - points[i - 1].length; };
    for (size_t i = 2; i + 1 < points.size(); ++i) {
      if (gap(i) < gap(least)) least = i;
    }
    release_if_there(points[least].seq);
    points.erase(points.begin() + static_cast<std::ptrdiff_t>(least));
  }
}

}  // namespace weir

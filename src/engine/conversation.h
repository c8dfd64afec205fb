#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/tokenizer.h"
#include "kv/kv_cache.h"

namespace weir {

// A named line of tokens whose KV is kept between requests, with checkpoints to rewind to. All KV
// in it may be evicted while it is idle; the tokens are the truth and rebuild it.
struct Conversation {
  std::vector<Token> tokens;  // committed to `seq`
  SeqId seq{};
  bool has_seq = false;
  bool is_busy = false;  // a request is using it

  struct Checkpoint {
    int64_t length = 0;  // tokens it covers
    SeqId seq{};
  };
  std::vector<Checkpoint> checkpoints;  // ascending lengths
};

class ConversationStore {
 public:
  static constexpr size_t kMaxCheckpoints = 8;

  explicit ConversationStore(KvCache& cache) : cache_(cache) {}

  ConversationId open();
  // A second conversation with the same tokens over the same blocks. Errors: over_budget,
  // invalid_input if unknown or busy.
  Result<ConversationId> fork(ConversationId id);
  // Forgets it and gives its KV back. Errors: invalid_input if unknown or busy.
  Status close(ConversationId id);
  Conversation* find(ConversationId id);
  size_t size() const { return conversations_.size(); }

  // Cuts the conversation's sequence to the longest exact prefix it shares with `prompt`, at most
  // prompt.size()-1 tokens, going back to a checkpoint if the window requires it; starts an empty
  // sequence if nothing can be used. Returns the tokens that need not be computed.
  int64_t rewind_to(Conversation& conversation, std::span<const Token> prompt);

  // Keeps the present state of the conversation as a checkpoint, if there is room and none at this
  // length. Beyond kMaxCheckpoints the one goes whose loss leaves the smallest gap; the first and
  // the latest stay.
  void checkpoint(Conversation& conversation);

 private:
  int64_t restart_from_checkpoint(Conversation& conversation, int64_t common);
  void release_if_there(SeqId seq);
  void drop_lost_checkpoints(Conversation& conversation);
  void thin_checkpoints(Conversation& conversation);
  void release_all(Conversation& conversation);

  KvCache& cache_;
  std::map<ConversationId, Conversation> conversations_;
  uint64_t next_id_ = 1;
};

}  // namespace weir

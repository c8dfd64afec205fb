#pragma once

#include <string>
#include <vector>

#include "cli/options.h"
#include "engine/chat_template.h"

namespace weir {

// A chat with branches, each no more than what was said: the engine finds the KV of what a prompt
// has in common with any earlier one, so undoing shortens the messages and branching copies them.
class ChatSession {
 public:
  // Errors: unsupported if the model has no chat template.
  static Result<ChatSession> create(LoadedEngine& loaded, std::string system_prompt,
                                    SamplingParams sampling, int64_t max_new_tokens);

  // One user turn; `on_text` gets the reply as it comes. A reply that failed leaves the chat as it
  // was before the turn.
  Result<Reply> say(const std::string& text, const std::function<void(std::string_view)>& on_text);
  // Drops the last user turn and its reply. False if there is none.
  bool undo();
  // Says the last user message again for another reply. Errors: invalid_input if there is none.
  Result<Reply> regenerate(const std::function<void(std::string_view)>& on_text);
  // Starts an empty chat beside the others and goes there; returns its number.
  int start_new();
  // Copies this chat and goes to the copy; both share their KV. Returns its number.
  int fork();
  bool go_to(int branch);
  int branch() const { return branch_; }
  int branches() const { return static_cast<int>(branches_.size()); }
  // The KV of this branch when its last reply ended, and the tokens in it.
  const KvUsage& kv() { return current().kv; }
  int64_t kv_tokens() { return current().kv_tokens; }

 private:
  struct Branch {
    std::vector<ChatMessage> messages;
    KvUsage kv;
    int64_t kv_tokens = 0;
  };
  ChatSession(LoadedEngine& loaded, ChatTemplate chat_template)
      : loaded_(&loaded), template_(std::move(chat_template)) {}
  Branch& current() { return branches_[static_cast<size_t>(branch_)]; }
  // Answers the messages as they stand now; `before` is what to go back to on failure.
  Result<Reply> reply(std::vector<ChatMessage> before,
                      const std::function<void(std::string_view)>& on_text);

  LoadedEngine* loaded_;
  ChatTemplate template_;
  std::string system_prompt_;
  SamplingParams sampling_;
  int64_t max_new_tokens_ = -1;
  std::vector<Branch> branches_;
  int branch_ = 0;
};

}  // namespace weir

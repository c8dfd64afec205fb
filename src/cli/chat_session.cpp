#include "cli/chat_session.h"

#include "cli/interrupt.h"

namespace weir {

Result<ChatSession> ChatSession::create(LoadedEngine& loaded, std::string system_prompt,
                                        SamplingParams sampling, int64_t max_new_tokens) {
  Result<ChatTemplate> chat_template = ChatTemplate::create(loaded.model->vocab_model());
  if (!chat_template) return chat_template.error();
  ChatSession session(loaded, std::move(*chat_template));
  session.system_prompt_ = std::move(system_prompt);
  session.sampling_ = std::move(sampling);
  session.max_new_tokens_ = max_new_tokens;
  session.start_new();
  return session;
}

int ChatSession::start_new() {
  Branch branch;
  if (!system_prompt_.empty()) branch.messages.push_back({"system", system_prompt_});
  branches_.push_back(std::move(branch));
  return branch_ = branches() - 1;
}

int ChatSession::fork() {
  branches_.push_back(Branch(current()));
  return branch_ = branches() - 1;
}

bool ChatSession::go_to(int branch) {
  if (branch < 0 || branch >= branches()) return false;
  branch_ = branch;
  return true;
}

bool ChatSession::undo() {
  auto& messages = current().messages;
  while (!messages.empty() && messages.back().role == "assistant") messages.pop_back();
  if (messages.empty() || messages.back().role != "user") return false;
  messages.pop_back();
  return true;
}

Result<Reply> ChatSession::say(const std::string& text,
                               const std::function<void(std::string_view)>& on_text) {
  std::vector<ChatMessage> before = current().messages;
  current().messages.push_back({"user", text});
  return reply(std::move(before), on_text);
}

Result<Reply> ChatSession::regenerate(const std::function<void(std::string_view)>& on_text) {
  std::vector<ChatMessage> before = current().messages;
  auto& messages = current().messages;
  while (!messages.empty() && messages.back().role == "assistant") messages.pop_back();
  if (messages.empty() || messages.back().role != "user") {
    messages = std::move(before);
    return Status(Code::invalid_input, "there is no message to answer again");
  }
  ++sampling_.seed;
  return reply(std::move(before), on_text);
}

Result<Reply> ChatSession::reply(std::vector<ChatMessage> before,
                                 const std::function<void(std::string_view)>& on_text) {
  auto& messages = current().messages;
  const auto give_up = [&](Status status) {
    messages = std::move(before);
    return status;
  };
  const Result<std::string> prompt = template_.render(messages, true);
  if (!prompt) return give_up(prompt.error());
  Result<std::vector<Token>> tokens = loaded_->engine->tokenizer().tokenize(*prompt, true, true);
  if (!tokens) return give_up(tokens.error());

  Request request;
  request.prompt = std::move(*tokens);
  request.sampling = sampling_;
  request.max_new_tokens = max_new_tokens_;
  RequestEvents events;
  events.on_token = [&on_text](const TokenEvent& event) { on_text(event.text); };
  Reply reply = run_interruptibly(*loaded_->engine, std::move(request), std::move(events));
  if (reply.reason == FinishReason::failed) return give_up(reply.error);
  messages.push_back({"assistant", reply.text});
  current().kv = reply.kv;
  current().kv_tokens = reply.kv_tokens;
  return reply;
}

}  // namespace weir

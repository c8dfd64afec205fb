#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat_reply.h"
#include "http/http_types.h"
#include "openai/response.h"
#include "server/openai/prepare.h"
#include "server/openai/workers.h"

namespace weir {

// The answer to one request while its choices are being written. The engine's thread only leaves
// what happened; a worker takes replies apart and writes.
class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(Prepared prepared, openai::AnswerHead head, const Tokenizer& tokenizer,
         std::shared_ptr<Workers> workers, std::shared_ptr<ResponseWriter> writer);

  // What the engine has to tell about a choice. The events keep the answer.
  RequestEvents events_of(size_t choice);
  // Gives up what the engine was given: when one choice fails, nobody waits for the others.
  void set_cancel(std::function<void()> cancel);

 private:
  // What happened to a choice, as the engine's thread leaves it.
  struct Happening {
    enum class Kind { token, progress, finish };
    Kind kind{};
    size_t choice = 0;
    std::string text;
    bool is_new = false;
    std::optional<TokenLogprobs> logprobs;
    int64_t done = 0, total = 0;
    std::shared_ptr<const Reply> reply;
  };
  struct Choice {
    std::optional<ChatReplyReader> reader;       // of chats
    std::string content;                         // of plain completions
    std::string pending;                         // text that was not read yet
    std::vector<openai::LogprobEntry> logprobs;  // all; in a stream those not sent yet
    std::vector<size_t> token_ends;  // text length behind each token, to count reasoning by
    size_t text_length = 0;
    size_t text_offset = 0;  // of the first of `logprobs`
    double logprob_sum = 0;
    int64_t n_logprobs = 0;
    std::shared_ptr<const Reply> reply;  // when it has ended
  };

  void leave(Happening happening);
  void work();
  void handle(const Happening& happening);
  void begin();
  void add_token(Choice& choice, const Happening& happening);
  void flush(size_t index);
  void emit(size_t index, openai::ChoiceDelta delta, bool is_last);
  void finish_choice(size_t index, std::shared_ptr<const Reply> reply);
  void send_progress(const Happening& happening);
  void send(openai::Json event);
  void fail(const openai::ApiError& error);
  void cancel_all();
  void complete();

  openai::LogprobEntry entry_of(const TokenLogprobs& logprobs) const;
  std::string finish_reason(const Choice& choice) const;
  openai::ChoiceFacts facts(const Reply& reply) const;
  openai::FinishedChoice finished(Choice& choice) const;
  std::optional<int64_t> reasoning_tokens(const Choice& choice) const;
  openai::UsageCounts usage() const;
  std::vector<size_t> shown() const;

  const Prepared prepared_;
  const openai::AnswerHead head_;
  const Tokenizer& tokenizer_;
  const std::shared_ptr<Workers> workers_;
  const std::shared_ptr<ResponseWriter> writer_;
  const std::chrono::steady_clock::time_point start_;

  std::mutex mutex_;
  std::vector<Happening> happenings_;
  bool is_scheduled_ = false;
  bool has_failed_ = false;
  std::function<void()> cancel_;

  // Of whoever works; one at a time.
  std::vector<Choice> choices_;
  size_t n_finished_ = 0;
  bool has_begun_ = false;
  bool has_ended_ = false;
};

}  // namespace weir

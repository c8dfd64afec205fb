#include "server/openai/answer.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace weir {
namespace {

using openai::ChoiceDelta;
using openai::Json;

openai::PieceLogprob piece_of(const Tokenizer& tokenizer, const TokenLogprob& one) {
  return {tokenizer.piece(one.token, true), one.logprob};
}

void add(ChoiceDelta& to, const ChatReplyDelta& from) {
  to.reasoning += from.reasoning;
  to.content += from.content;
  for (const auto& call : from.tool_calls) {
    to.tool_calls.push_back({call.index, call.id, call.name, call.arguments});
  }
}

}  // namespace

Answer::Answer(Prepared prepared, openai::AnswerHead head, const Tokenizer& tokenizer,
               std::shared_ptr<Workers> workers, std::shared_ptr<ResponseWriter> writer)
    : prepared_(std::move(prepared)),
      head_(std::move(head)),
      tokenizer_(tokenizer),
      workers_(std::move(workers)),
      writer_(std::move(writer)),
      start_(std::chrono::steady_clock::now()),
      choices_(prepared_.choices.size()) {
  if (!prepared_.is_chat) return;
  for (Choice& choice : choices_) choice.reader.emplace(prepared_.format);
}

RequestEvents Answer::events_of(size_t choice) {
  RequestEvents events;
  events.on_token = [self = shared_from_this(), choice](const TokenEvent& event) {
    Happening happening;
    happening.kind = Happening::Kind::token;
    happening.choice = choice;
    happening.text = event.text;
    // The end of a turn is nothing that was said.
    happening.is_new = event.is_new && !self->tokenizer_.is_end(event.token);
    if (event.logprobs && happening.is_new) happening.logprobs = *event.logprobs;
    self->leave(std::move(happening));
  };
  events.on_prompt_progress = [self = shared_from_this(), choice](int64_t done, int64_t total) {
    Happening happening;
    happening.kind = Happening::Kind::progress;
    happening.choice = choice;
    happening.done = done;
    happening.total = total;
    self->leave(std::move(happening));
  };
  events.on_finish = [self = shared_from_this(), choice](const Reply& reply) {
    Happening happening;
    happening.kind = Happening::Kind::finish;
    happening.choice = choice;
    happening.reply = std::make_shared<const Reply>(reply);
    self->leave(std::move(happening));
  };
  return events;
}

void Answer::set_cancel(std::function<void()> cancel) {
  const std::lock_guard lock(mutex_);
  cancel_ = std::move(cancel);
  if (has_failed_) cancel_();
}

void Answer::cancel_all() {
  const std::lock_guard lock(mutex_);
  has_failed_ = true;
  if (cancel_) cancel_();
}

void Answer::leave(Happening happening) {
  {
    const std::lock_guard lock(mutex_);
    happenings_.push_back(std::move(happening));
    if (is_scheduled_) return;
    is_scheduled_ = true;
  }
  workers_->post([self = shared_from_this()] { self->work(); });
}

// Takes all that has happened so far at once: a reply is read from its start every time, so that a
// worker that is behind catches up instead of falling further back.
void Answer::work() {
  for (;;) {
    std::vector<Happening> happenings;
    {
      const std::lock_guard lock(mutex_);
      if (happenings_.empty()) {
        is_scheduled_ = false;
        return;
      }
      happenings.swap(happenings_);
    }
    for (const Happening& happening : happenings) {
      if (!has_ended_) handle(happening);
    }
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (!has_ended_) flush(i);
    }
  }
}

void Answer::handle(const Happening& happening) {
  switch (happening.kind) {
    case Happening::Kind::token:
      begin();
      add_token(choices_[happening.choice], happening);
      break;
    case Happening::Kind::progress:
      begin();
      send_progress(happening);
      break;
    case Happening::Kind::finish:
      finish_choice(happening.choice, happening.reply);
      break;
  }
}

// The first words of a stream, as soon as the engine works on it; until then a refusal can have a
// status of its own.
void Answer::begin() {
  if (has_begun_ || !prepared_.stream) return;
  has_begun_ = true;
  writer_->begin_stream(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (prepared_.is_chat) {
      send(openai::chat_role_event(head_, i));
    } else if (!prepared_.echoes.empty()) {
      ChoiceDelta echo;
      echo.content = prepared_.echoes[prepared_.choices[i].prompt];
      send(openai::completion_delta_event(head_, i, echo, 0));
    }
  }
}

void Answer::add_token(Choice& choice, const Happening& happening) {
  choice.pending += happening.text;
  choice.text_length += happening.text.size();
  if (happening.is_new) choice.token_ends.push_back(choice.text_length);
  if (!happening.logprobs) return;
  choice.logprob_sum += happening.logprobs->chosen.logprob;
  ++choice.n_logprobs;
  if (prepared_.shows_logprobs) choice.logprobs.push_back(entry_of(*happening.logprobs));
}

void Answer::flush(size_t index) {
  Choice& choice = choices_[index];
  if (choice.pending.empty()) return;
  ChoiceDelta delta;
  if (choice.reader) {
    add(delta, choice.reader->push(choice.pending));
  } else {
    choice.content += choice.pending;
    delta.content = choice.pending;
  }
  choice.pending.clear();
  emit(index, std::move(delta), false);
}

void Answer::emit(size_t index, ChoiceDelta delta, bool is_last) {
  if (!prepared_.stream || (delta.empty() && !is_last)) return;
  Choice& choice = choices_[index];
  delta.logprobs = std::move(choice.logprobs);
  choice.logprobs.clear();
  if (prepared_.is_chat) {
    for (Json& event : openai::chat_delta_events(head_, index, delta)) send(std::move(event));
  } else if (!delta.empty()) {
    send(openai::completion_delta_event(head_, index, delta, choice.text_offset));
    for (const auto& entry : delta.logprobs) choice.text_offset += entry.chosen.bytes.size();
  }
}

void Answer::finish_choice(size_t index, std::shared_ptr<const Reply> reply) {
  if (reply->reason == FinishReason::failed) return fail(to_api_error(reply->error));
  if (reply->reason == FinishReason::cancelled) {
    return fail(to_api_error(Status(Code::cancelled, "the request was cancelled")));
  }
  begin();
  flush(index);
  Choice& choice = choices_[index];
  choice.reply = std::move(reply);
  ChoiceDelta rest;
  if (choice.reader) {
    add(rest, choice.reader->finish(choice.reply->reason == FinishReason::end_of_turn));
  }
  emit(index, std::move(rest), true);
  if (prepared_.stream) {
    const std::string reason = finish_reason(choice);
    send(prepared_.is_chat
             ? openai::chat_finish_event(head_, index, reason, facts(*choice.reply))
             : openai::completion_finish_event(head_, index, reason, facts(*choice.reply)));
  }
  if (++n_finished_ == choices_.size()) complete();
}

void Answer::send_progress(const Happening& happening) {
  if (!prepared_.stream || !prepared_.return_progress) return;
  const int64_t length = prepared_.choices[happening.choice].prompt_tokens;
  const int64_t cached = length - happening.total;
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start_;
  send(openai::progress_event(head_, prepared_.is_chat, happening.choice, length, cached,
                              cached + happening.done, time.count()));
}

void Answer::send(Json event) {
  // Clients that asked for usage find the field in every event.
  if (prepared_.include_usage && !event.contains("usage")) event["usage"] = nullptr;
  writer_->write(openai::sse(event));
}

void Answer::fail(const openai::ApiError& error) {
  has_ended_ = true;
  cancel_all();
  if (has_begun_) {
    writer_->write(openai::sse(openai::error_json(error)));
    writer_->end();
    return;
  }
  HttpResponse response =
      error_response(error.status, error.type, error.code, error.message, error.param);
  if (error.status == 503) response.headers.emplace_back("Retry-After", "5");
  writer_->send(std::move(response));
}

void Answer::complete() {
  has_ended_ = true;
  if (prepared_.stream) {
    if (prepared_.include_usage) send(openai::usage_event(head_, prepared_.is_chat, usage()));
    writer_->write(openai::kSseDone);
    writer_->end();
    return;
  }
  std::vector<openai::FinishedChoice> choices;
  std::vector<std::string> echoes;
  for (const size_t index : shown()) {
    choices.push_back(finished(choices_[index]));
    if (!prepared_.echoes.empty()) {
      echoes.push_back(prepared_.echoes[prepared_.choices[index].prompt]);
    }
  }
  const Json answer = prepared_.is_chat
                          ? openai::chat_answer(head_, choices, usage())
                          : openai::completion_answer(head_, choices, echoes, usage());
  writer_->send(200, "application/json", openai::dump(answer));
}

openai::LogprobEntry Answer::entry_of(const TokenLogprobs& logprobs) const {
  openai::LogprobEntry entry{piece_of(tokenizer_, logprobs.chosen), {}};
  for (const TokenLogprob& one : logprobs.top) entry.top.push_back(piece_of(tokenizer_, one));
  return entry;
}

std::string Answer::finish_reason(const Choice& choice) const {
  switch (choice.reply->reason) {
    case FinishReason::end_of_turn:
    case FinishReason::stop_string:
      return choice.reader && !choice.reader->reply().tool_calls.empty() ? "tool_calls" : "stop";
    default:
      return "length";
  }
}

openai::ChoiceFacts Answer::facts(const Reply& reply) const {
  const Timings& t = reply.timings;
  const Reuse& r = reply.reuse;
  return {
      finish_reason_name(reply.reason), t.prefill_ms, t.prefill_tps(), t.decode_ms, t.decode_tps(),
      miss_reason_name(r.miss),         r.common,     r.restart,       r.healed};
}

openai::FinishedChoice Answer::finished(Choice& choice) const {
  openai::FinishedChoice out;
  if (choice.reader) {
    const ChatReply& reply = choice.reader->reply();
    out.reasoning = reply.reasoning;
    out.content = reply.content;
    for (const ChatToolCall& call : reply.tool_calls) {
      out.tool_calls.push_back({call.id, call.name, call.arguments});
    }
  } else {
    out.content = choice.content;
  }
  out.has_logprobs = prepared_.shows_logprobs;
  out.logprobs = std::move(choice.logprobs);
  out.finish_reason = finish_reason(choice);
  out.facts = facts(*choice.reply);
  return out;
}

// Tokens up to the mark that ends the reasoning, which belongs to it.
std::optional<int64_t> Answer::reasoning_tokens(const Choice& choice) const {
  if (!choice.reader || prepared_.thinking_ends.empty()) return std::nullopt;
  if (choice.reader->reply().reasoning.empty()) return 0;
  size_t end = std::string::npos;
  for (const std::string& mark : prepared_.thinking_ends) {
    const size_t at = choice.reader->text().find(mark);
    if (at != std::string::npos) end = std::min(end, at + mark.size());
  }
  return std::count_if(choice.token_ends.begin(), choice.token_ends.end(),
                       [&](size_t token_end) { return token_end <= end; });
}

// A prompt counts once, however many choices there are; what the first of them found counts as
// cached.
openai::UsageCounts Answer::usage() const {
  openai::UsageCounts sum;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Usage& usage = choices_[i].reply->usage;
    if (i == 0 || prepared_.choices[i].prompt != prepared_.choices[i - 1].prompt) {
      sum.prompt_tokens += usage.prompt_tokens;
      sum.cached_tokens += usage.cached_tokens;
    }
    sum.completion_tokens += usage.completion_tokens;
    if (const auto reasoning = reasoning_tokens(choices_[i])) {
      sum.reasoning_tokens = sum.reasoning_tokens.value_or(0) + *reasoning;
    }
  }
  return sum;
}

// Of each prompt's choices the n whose tokens were the likeliest on average, best first; all in
// their order when no more were made than are shown.
std::vector<size_t> Answer::shown() const {
  std::vector<size_t> result;
  for (size_t start = 0; start < choices_.size();) {
    size_t end = start;
    while (end < choices_.size() &&
           prepared_.choices[end].prompt == prepared_.choices[start].prompt) {
      ++end;
    }
    std::vector<size_t> group(end - start);
    std::iota(group.begin(), group.end(), start);
    if (std::ssize(group) > prepared_.n_shown) {
      const auto mean = [&](size_t i) {
        const Choice& choice = choices_[i];
        return choice.n_logprobs ? choice.logprob_sum / static_cast<double>(choice.n_logprobs) : 0;
      };
      std::stable_sort(group.begin(), group.end(),
                       [&](size_t a, size_t b) { return mean(a) > mean(b); });
      group.resize(static_cast<size_t>(prepared_.n_shown));
    }
    result.insert(result.end(), group.begin(), group.end());
    start = end;
  }
  return result;
}

}  // namespace weir

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat_template.h"
#include "engine/engine.h"
#include "openai/request.h"

namespace weir {

struct OpenAiOptions {
  std::string model_id;          // as /v1/models tells it
  SamplingParams sampling;       // for what a request leaves open
  int64_t max_new_tokens = -1;   // likewise; -1: no bound
  std::string version = "weir";  // system_fingerprint
  int n_threads = 4;             // that prepare requests and write answers
};

// What the engine is asked for one choice.
struct PreparedChoice {
  Request request;
  int64_t prompt_tokens = 0;
  size_t prompt = 0;  // of several prompts, which
};

// A request that is ready for the engine, and what is needed to write its answer.
struct Prepared {
  bool is_chat = false;
  bool stream = false, include_usage = false, return_progress = false;
  int64_t n_shown = 1;  // of each prompt's choices, the best so many
  bool shows_logprobs = false;
  std::vector<PreparedChoice> choices;       // prompt by prompt
  std::vector<std::string> echoes;           // of each prompt; empty without echo
  std::shared_ptr<const ChatFormat> format;  // of chats
  std::vector<std::string> thinking_ends;
};

// Turns parsed requests into the engine's. Any thread; slow work, for Workers.
class Preparer {
 public:
  // `chat_template` is null for a model that has none. All must outlive it.
  Preparer(const Tokenizer& tokenizer, const ChatTemplate* chat_template, int64_t max_context,
           const OpenAiOptions& options)
      : tokenizer_(tokenizer),
        template_(chat_template),
        max_context_(max_context),
        options_(options) {}

  openai::Parsed<Prepared> chat(const openai::ChatRequest& from, uint32_t tenant) const;
  openai::Parsed<Prepared> completion(const openai::CompletionRequest& from, uint32_t tenant) const;
  // The prompt text alone.
  openai::Parsed<std::string> render(const openai::ChatRequest& from) const;

 private:
  openai::Parsed<ChatPrompt> apply(const openai::ChatRequest& from, ChatInput& input) const;
  openai::Parsed<Request> common(const openai::Generation& from, uint32_t tenant) const;
  std::optional<openai::ApiError> check_length(const std::vector<Token>& prompt) const;
  std::optional<openai::ApiError> add_grammar(const openai::ChatRequest& from,
                                              const ChatPrompt& prompt, Request& request) const;
  std::vector<Token> marks(const std::string& text) const;
  void add_restart_point(const ChatInput& input, const ChatPrompt& prompt, Request& request) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate* template_;
  const int64_t max_context_;
  const OpenAiOptions& options_;
};

// The refusal that an engine's error becomes.
openai::ApiError to_api_error(const Status& error);

}  // namespace weir

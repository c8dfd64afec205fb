#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "engine/chat_template.h"
#include "engine/engine.h"
#include "http/router.h"
#include "model/model.h"
#include "server/openai/prepare.h"
#include "server/openai/workers.h"
#include "server/request_gate.h"

namespace weir {

// How requests get to the engine: RequestGate::submit. Never waits.
using SubmitRequests =
    std::function<Admission(std::vector<Submission> all, ResponseWriter& writer)>;
// Whose prefixes and conversations a caller may use.
using TenantOf = std::function<uint32_t(const Caller& caller)>;

// OpenAI's API, and llama-server's additions to it, over the engine: docs/http-api.md.
class OpenAiApi {
 public:
  // All must outlive it, and the functions be callable until it is gone. A model without a chat
  // template gets no chats. Destroy it when nobody calls its routes any more, before the engine.
  OpenAiApi(const Model& model, const Engine& engine, OpenAiOptions options, SubmitRequests submit,
            TenantOf tenant_of);
  ~OpenAiApi();
  OpenAiApi(const OpenAiApi&) = delete;
  OpenAiApi& operator=(const OpenAiApi&) = delete;

  void add_routes(Router& router);

 private:
  using Writer = std::shared_ptr<ResponseWriter>;
  using Work = void (OpenAiApi::*)(const HttpRequest& request, const Writer& writer);

  // A handler that has a worker do it.
  HttpHandler by_worker(Work work);
  void chat(const HttpRequest& request, const Writer& writer);
  void completion(const HttpRequest& request, const Writer& writer);
  void apply_template(const HttpRequest& request, const Writer& writer);
  void tokenize(const HttpRequest& request, const Writer& writer);
  void detokenize(const HttpRequest& request, const Writer& writer);
  void list_models(const HttpRequest& request, const Writer& writer);
  void show_model(const HttpRequest& request, const Writer& writer);

  template <typename Parsed>
  bool take_conversation(const HttpRequest& request, Parsed& parsed, const Writer& writer) const;
  void start(Prepared prepared, const Writer& writer);
  openai::Json model_json() const;

  const Model& model_;
  const OpenAiOptions options_;
  const SubmitRequests submit_;
  const TenantOf tenant_of_;
  const Tokenizer tokenizer_;
  const int64_t max_context_;
  const int64_t created_;
  std::optional<ChatTemplate> template_;
  std::unique_ptr<Preparer> preparer_;
  std::shared_ptr<Workers> workers_;
};

}  // namespace weir

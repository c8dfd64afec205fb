#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "http/http_server.h"
#include "server/api_keys.h"
#include "server/openai/open_ai_api.h"
#include "server/serving.h"

namespace weir {

struct ApiServerOptions {
  HttpServerOptions http;
  GateOptions gate;
  OpenAiOptions openai;
  std::optional<ApiKeys> keys;
  std::chrono::milliseconds stall_limit{60'000};
};

// An engine served over HTTP, from start() on.
class ApiServer {
 public:
  // `model` and `engine` must outlive it; the engine has the keys' tenants. Errors: as
  // HttpServer::start.
  static Result<std::unique_ptr<ApiServer>> start(const Model& model, Engine& engine,
                                                  ApiServerOptions options);
  // At once: running replies are cut and their connections closed.
  ~ApiServer();

  const HttpServer& http() const { return *http_; }
  const RequestGate& gate() const { return gate_; }

  // Lets nobody in any more. Replies may finish within `grace`; those that did not are cut, and
  // their clients told so.
  void stop(std::chrono::milliseconds grace);

 private:
  ApiServer(const Model& model, Engine& engine, ApiServerOptions& options);

  const std::optional<ApiKeys> keys_;
  RequestGate gate_;
  Serving serving_;
  std::unique_ptr<OpenAiApi> openai_;
  std::unique_ptr<HttpServer> http_;  // the first to go: it calls all the others
};

}  // namespace weir

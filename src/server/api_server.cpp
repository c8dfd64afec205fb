#include "server/api_server.h"

#include <thread>

namespace weir {
namespace {

// For cut replies to be computed to the end of their step, and sent.
constexpr std::chrono::seconds kCutTime{10};

}  // namespace

ApiServer::ApiServer(const Model& model, Engine& engine, ApiServerOptions& options)
    : keys_(std::move(options.keys)),
      gate_(engine, options.gate),
      serving_{.model = model,
               .engine = engine,
               .gate = gate_,
               .keys = keys_ ? &*keys_ : nullptr,
               .stall_limit = options.stall_limit} {}

Result<std::unique_ptr<ApiServer>> ApiServer::start(const Model& model, Engine& engine,
                                                    ApiServerOptions options) {
  std::unique_ptr<ApiServer> server(new ApiServer(model, engine, options));
  Router router;
  add_health_routes(router, server->serving_);
  add_kv_routes(router, server->serving_);
  server->openai_ = std::make_unique<OpenAiApi>(
      model, engine, std::move(options.openai),
      [gate = &server->gate_](std::vector<Submission> all, ResponseWriter& writer) {
        return gate->submit(std::move(all), writer);
      },
      [](const Caller& caller) { return caller.tenant; });
  server->openai_->add_routes(router);
  if (server->keys_) {
    options.http.authenticate = [keys = &*server->keys_](const HttpRequest& request) {
      return keys->find(request);
    };
  }
  Result<std::unique_ptr<HttpServer>> http =
      HttpServer::start(std::move(options.http), std::move(router));
  if (!http) return http.error();
  server->http_ = std::move(*http);
  server->serving_.http = server->http_.get();
  return server;
}

ApiServer::~ApiServer() {
  gate_.stop(std::chrono::milliseconds(0));
  serving_.http = nullptr;
}

void ApiServer::stop(std::chrono::milliseconds grace) {
  serving_.is_stopping = true;
  http_->drain();
  gate_.stop(grace);
  const auto until = std::chrono::steady_clock::now() + kCutTime;
  while (http_->stats().connections > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace weir

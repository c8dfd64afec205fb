// GET /health: may requests be sent here? GET /metrics: what was counted.
#include <fmt/format.h>

#include "http/http_server.h"
#include "server/metrics.h"
#include "server/serving.h"

namespace weir {
namespace {

HttpResponse unhealthy(std::string_view status, std::string_view message) {
  HttpResponse response{503, "application/json", {}, {{"Retry-After", "5"}}};
  response.body = fmt::format(
      R"({{"status":{},"error":{{"message":{},"type":"unavailable_error","param":null,"code":{}}}}})",
      json_string(status), json_string(message), json_string(status));
  return response;
}

HttpResponse health(const Serving& serving) {
  if (serving.is_stopping) return unhealthy("stopping", "the server is stopping");
  const EngineStats stats = serving.engine.stats();
  const double limit = std::chrono::duration<double>(serving.stall_limit).count();
  if (stats.stalled_seconds > limit) {
    return unhealthy("stalled", fmt::format("there is work, and no step finished for {:.0f} s",
                                            stats.stalled_seconds));
  }
  return {200, "application/json", R"({"status":"ok"})", {}};
}

}  // namespace

void add_health_routes(Router& router, Serving& serving) {
  router.add(
      "GET", "/health",
      [&serving](const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
        writer->send(health(serving));
      },
      Access::open);
  router.add(
      "GET", "/metrics",
      [&serving](const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
        const HttpServer* http = serving.http;
        writer->send(200, "text/plain; version=0.0.4; charset=utf-8",
                     metrics_text(serving.engine.stats(), serving.gate.stats(),
                                  http ? http->stats() : HttpStats{}));
      },
      Access::admin);
}

}  // namespace weir

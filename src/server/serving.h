#pragma once

#include <atomic>
#include <chrono>

#include "engine/engine.h"
#include "http/router.h"
#include "model/model.h"
#include "server/request_gate.h"

namespace weir {

class ApiKeys;
class HttpServer;

// What the handlers of a server work with. All of it outlives the server's threads.
struct Serving {
  const Model& model;
  Engine& engine;
  RequestGate& gate;
  const ApiKeys* keys = nullptr;  // null: everybody may ask
  // With work, and without a step for so long, the server is not healthy.
  std::chrono::milliseconds stall_limit{60'000};
  std::atomic<bool> is_stopping{false};          // others should take over
  std::atomic<const HttpServer*> http{nullptr};  // once it runs
};

// GET /health, /metrics.
void add_health_routes(Router& router, Serving& serving);
// GET /v1/kv; /v1/kv/conversations and what can be done with one.
void add_kv_routes(Router& router, Serving& serving);

}  // namespace weir

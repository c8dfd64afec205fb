// server/: the engine behind HTTP: who may ask, how many may wait, what came of it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "engine/engine.h"
#include "http/http_types.h"

namespace weir {

struct GateOptions {
  int64_t max_running = 64;                    // of the engine
  int64_t max_waiting = 64;                    // requests beside those; more are told to come later
  std::chrono::milliseconds max_wait{60'000};  // in the queue
};

// What the gate did since the start, and holds now.
struct GateStats {
  int64_t waiting = 0;
  int64_t running = 0;
  uint64_t refused_full = 0;      // the queue was full
  uint64_t refused_invalid = 0;   // could never run
  uint64_t refused_stopping = 0;  // the server was about to end
};

// The one way from a handler to the engine. Any thread.
class RequestGate {
 public:
  // `engine` must outlive it and every writer given to it.
  RequestGate(Engine& engine, const GateOptions& options);

  // Hands the request to the engine, or returns the answer that says why not: 400 for what could
  // never run, 429 when too many wait, 503 when the server is stopping. `events` then tell what
  // became of it, on the engine's thread. The request is cancelled when the writer's client goes.
  std::optional<HttpResponse> submit(Request request, RequestEvents events, ResponseWriter& writer);

  // Lets nobody in any more and waits until all are out, or `grace` is over: then those that are
  // still in are cancelled, which takes until the step under way is over.
  void stop(std::chrono::milliseconds grace);

  GateStats stats() const;

 private:
  struct Inside;
  static RequestEvents watched(RequestEvents events, std::shared_ptr<Inside> inside,
                               std::shared_ptr<RequestId> id);

  Engine& engine_;
  const GateOptions options_;
  const std::shared_ptr<Inside> inside_;  // the requests' events have it, too
};

// The answer to a request that ended in an error: 400 with the engine's numbers (code
// "context_length_exceeded" when the prompt is too long), 404, 503 with Retry-After, 500.
HttpResponse response_to(const Status& error);

}  // namespace weir

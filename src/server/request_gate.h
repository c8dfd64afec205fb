// server/: the engine behind HTTP: who may ask, how many may wait, what came of it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

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

// A request, and who hears of it.
struct Submission {
  Request request;
  RequestEvents events;
};

// What came of handing requests to the engine: the answer that says why not, or the way to give
// them up, from any thread.
struct Admission {
  std::optional<HttpResponse> refusal;
  std::function<void()> cancel;
};

// The one way from a handler to the engine. Any thread.
class RequestGate {
 public:
  // `engine` must outlive it and every writer given to it.
  RequestGate(Engine& engine, const GateOptions& options);

  // Hands the requests of one client to the engine, all of them or none: 400 for what could never
  // run, 429 when too many wait, 503 when the server is stopping. Their events then tell what
  // became of them, on the engine's thread. They are cancelled when the writer's client goes.
  Admission submit(std::vector<Submission> all, ResponseWriter& writer);

  // Lets nobody in any more and waits until all are out, or `grace` is over: then those that are
  // still in are cancelled, which takes until the step under way is over.
  void stop(std::chrono::milliseconds grace);

  GateStats stats() const;

 private:
  struct Inside;
  std::optional<HttpResponse> refusal_of(const std::vector<Submission>& all);
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

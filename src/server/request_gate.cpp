#include "server/request_gate.h"

#include <condition_variable>
#include <map>
#include <mutex>

namespace weir {
namespace {

// A wait that is worth while: some replies of usual length will have ended.
constexpr const char* kRetrySeconds = "5";

HttpResponse try_later(int status, std::string_view type, std::string_view code,
                       std::string_view message) {
  HttpResponse response = error_response(status, type, code, message);
  response.headers.emplace_back("Retry-After", kRetrySeconds);
  return response;
}

}  // namespace

HttpResponse response_to(const Status& error) {
  constexpr std::string_view kInvalid = "invalid_request_error";
  switch (error.code()) {
    case Code::invalid_input:
    case Code::corrupt:
    case Code::unsupported:
      return error_response(400, kInvalid, {}, error.message());
    case Code::over_budget:
      return error_response(400, kInvalid, "context_length_exceeded", error.message());
    case Code::not_found:
      return error_response(404, "not_found_error", {}, error.message());
    case Code::unavailable:
      return try_later(503, "unavailable_error", "queue_timeout", error.message());
    case Code::cancelled:
      return try_later(503, "unavailable_error", "cancelled", error.message());
    default:
      return error_response(500, "server_error", {}, error.message());
  }
}

// Who is between submit and the last event.
struct RequestGate::Inside {
  mutable std::mutex mutex;
  std::condition_variable has_left;
  std::map<RequestId, bool> is_running;
  bool is_stopping = false;
  GateStats counts;
};

RequestGate::RequestGate(Engine& engine, const GateOptions& options)
    : engine_(engine), options_(options), inside_(std::make_shared<Inside>()) {}

// What can never be served, whenever it comes.
std::optional<HttpResponse> RequestGate::refusal_of(const std::vector<Submission>& all) {
  for (const Submission& one : all) {
    const Status error = engine_.check(one.request);
    if (error.ok()) continue;
    const bool is_too_long = std::ssize(one.request.prompt) >= engine_.max_context();
    return response_to(is_too_long ? Status(Code::over_budget, error.message()) : error);
  }
  const int64_t most = options_.max_running + options_.max_waiting;
  if (std::ssize(all) <= most) return std::nullopt;
  return response_to(Status(Code::invalid_input, "this server computes or queues " +
                                                     std::to_string(most) +
                                                     " replies at a time; ask for fewer than " +
                                                     std::to_string(all.size()) + " at once"));
}

Admission RequestGate::submit(std::vector<Submission> all, ResponseWriter& writer) {
  if (std::optional<HttpResponse> refusal = refusal_of(all)) {
    const std::lock_guard lock(inside_->mutex);
    ++inside_->counts.refused_invalid;
    return {std::move(refusal), {}};
  }
  const auto late = std::chrono::steady_clock::now() + options_.max_wait;
  const auto ids = std::make_shared<std::vector<RequestId>>();
  {
    // Held while the engine takes the requests: their events wait until the ids are there.
    const std::lock_guard lock(inside_->mutex);
    GateStats& counts = inside_->counts;
    if (inside_->is_stopping) {
      ++counts.refused_stopping;
      return {try_later(503, "unavailable_error", "stopping", "the server is stopping"), {}};
    }
    const int64_t more = std::ssize(all);
    if (counts.waiting + counts.running + more > options_.max_running + options_.max_waiting) {
      ++counts.refused_full;
      return {try_later(429, "rate_limit_error", "queue_full",
                        std::to_string(counts.running) + " requests are running and " +
                            std::to_string(counts.waiting) + " waiting; try again later"),
              {}};
    }
    counts.waiting += more;
    for (Submission& one : all) {
      one.request.start_before = late;
      const auto id = std::make_shared<RequestId>();
      *id = engine_.submit(std::move(one.request), watched(std::move(one.events), inside_, id));
      inside_->is_running.emplace(*id, false);
      ids->push_back(*id);
    }
  }
  std::function<void()> cancel = [&engine = engine_, ids] {
    for (const RequestId id : *ids) engine.cancel(id);
  };
  writer.on_gone(cancel);
  return {std::nullopt, std::move(cancel)};
}

RequestEvents RequestGate::watched(RequestEvents events, std::shared_ptr<Inside> inside,
                                   std::shared_ptr<RequestId> id) {
  events.on_start = [inside, id, next = std::move(events.on_start)] {
    {
      const std::lock_guard lock(inside->mutex);
      inside->is_running.at(*id) = true;
      --inside->counts.waiting;
      ++inside->counts.running;
    }
    if (next) next();
  };
  events.on_finish = [inside, id, next = std::move(events.on_finish)](const Reply& reply) {
    if (next) next(reply);
    const std::lock_guard lock(inside->mutex);
    const auto it = inside->is_running.find(*id);
    --(it->second ? inside->counts.running : inside->counts.waiting);
    inside->is_running.erase(it);
    inside->has_left.notify_all();
  };
  return events;
}

void RequestGate::stop(std::chrono::milliseconds grace) {
  std::unique_lock lock(inside_->mutex);
  inside_->is_stopping = true;
  const auto is_empty = [&] { return inside_->is_running.empty(); };
  if (inside_->has_left.wait_for(lock, grace, is_empty)) return;
  for (const auto& [id, is_running] : inside_->is_running) engine_.cancel(id);
  inside_->has_left.wait(lock, is_empty);
}

GateStats RequestGate::stats() const {
  const std::lock_guard lock(inside_->mutex);
  return inside_->counts;
}

}  // namespace weir

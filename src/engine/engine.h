#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/engine_core.h"

namespace weir {

// An EngineCore and the one thread that owns it. Every method may be called from any thread, but
// not from an event.
class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(const Model& model, KvDevice& device,
                                                const EngineOptions& options);
  ~Engine();  // cancels what is running and waits for its events

  // Never waits. What check() refuses finishes as failed.
  RequestId submit(Request request, RequestEvents events);
  // Whether the request could ever run. Errors: invalid_input, over_budget; with the numbers.
  Status check(const Request& request) const { return core_->check(request); }
  // The request ends with `cancelled` after the step under way.
  void cancel(RequestId id);
  // Submits and waits.
  Reply run(Request request, RequestEvents events = {});

  // Runs `work` on the engine's thread between steps, and waits for it.
  void with_core(const std::function<void(EngineCore&)>& work);
  // The same without waiting. Dropped if the engine ends before.
  void post(std::function<void(EngineCore&)> work);

  // As of the last finished step; stalled_seconds is of this moment.
  EngineStats stats() const;

  const Tokenizer& tokenizer() const { return core_->tokenizer(); }
  int64_t max_context() const { return core_->max_context(); }
  int64_t rewind_bound() const { return core_->rewind_bound(); }

 private:
  explicit Engine(std::unique_ptr<EngineCore> core);
  void loop();
  void wait_for_message(std::unique_lock<std::mutex>& lock);
  void publish();

  using Clock = std::chrono::steady_clock;

  std::unique_ptr<EngineCore> core_;  // the thread's, but for the constant parts
  std::atomic<uint64_t> next_id_{1};
  mutable std::mutex mutex_;
  std::condition_variable has_message_;
  std::deque<std::function<void(EngineCore&)>> messages_;
  bool is_stopping_ = false;
  bool is_busy_ = false;             // the thread has work
  Clock::time_point last_progress_;  // a step finished, or work came after there was none
  Clock::time_point last_step_;
  EngineStats stats_;
  std::thread thread_;
};

}  // namespace weir

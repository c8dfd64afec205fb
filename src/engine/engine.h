#pragma once

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

  RequestId submit(Request request, RequestEvents events);
  // The request ends with `cancelled` after the step under way.
  void cancel(RequestId id);
  // Submits and waits.
  Reply run(Request request, RequestEvents events = {});

  // Runs `work` on the engine's thread between steps, and waits for it.
  void with_core(const std::function<void(EngineCore&)>& work);

  const Tokenizer& tokenizer() const { return core_->tokenizer(); }
  int64_t max_context() const { return core_->max_context(); }

 private:
  explicit Engine(std::unique_ptr<EngineCore> core);
  void loop();
  void post(std::function<void(EngineCore&)> message);

  std::unique_ptr<EngineCore> core_;  // the thread's, but for the constant parts
  std::mutex mutex_;
  std::condition_variable has_message_;
  std::deque<std::function<void(EngineCore&)>> messages_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace weir

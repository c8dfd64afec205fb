#include "engine/engine.h"

#include <cmath>

namespace weir {

Result<std::unique_ptr<Engine>> Engine::create(const Model& model, KvDevice& device,
                                               const EngineOptions& options) {
  Result<std::unique_ptr<EngineCore>> core = EngineCore::create(model, device, options);
  if (!core) return core.error();
  return std::unique_ptr<Engine>(new Engine(std::move(*core)));
}

Engine::Engine(std::unique_ptr<EngineCore> core) : core_(std::move(core)) {
  stats_ = core_->stats();
  thread_ = std::thread([this] { loop(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  has_message_.notify_one();
  thread_.join();
}

// How often the thread looks after a tier while it has nothing else to do.
constexpr std::chrono::milliseconds kTierPause{1};

void Engine::loop() {
  for (;;) {
    std::deque<std::function<void(EngineCore&)>> messages;
    bool is_stopping = false;
    {
      std::unique_lock lock(mutex_);
      if (core_->is_idle()) {
        is_busy_ = false;
        wait_for_message(lock);
        is_busy_ = true;
        last_progress_ = Clock::now();
      } else if (core_->is_waiting_for_tier()) {
        has_message_.wait_for(lock, kTierPause);
      }
      messages.swap(messages_);
      is_stopping = is_stopping_;
    }
    for (const auto& message : messages) message(*core_);
    if (is_stopping) {
      core_->cancel_all();
      while (core_->step()) {
      }
      return;
    }
    core_->step();
    publish();
  }
}

// Meanwhile looks after the tier, if there is one.
void Engine::wait_for_message(std::unique_lock<std::mutex>& lock) {
  const auto is_wanted = [&] { return !messages_.empty() || is_stopping_; };
  while (!is_wanted()) {
    lock.unlock();
    const bool has_tier_work = core_->tend_tier();
    publish();
    lock.lock();
    if (has_tier_work) {
      has_message_.wait_for(lock, kTierPause, is_wanted);
    } else {
      has_message_.wait(lock, is_wanted);
    }
  }
}

void Engine::publish() {
  EngineStats stats = core_->stats();
  const std::lock_guard lock(mutex_);
  if (stats.steps != stats_.steps) last_progress_ = last_step_ = Clock::now();
  stats_ = std::move(stats);
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  const auto seconds_since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  if (is_busy_) stats.stalled_seconds = seconds_since(last_progress_);
  stats.tokens_per_second = decayed_rate(stats.tokens_per_second, seconds_since(last_step_));
  return stats;
}

void Engine::post(std::function<void(EngineCore&)> message) {
  {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
  }
  has_message_.notify_one();
}

void Engine::with_core(const std::function<void(EngineCore&)>& work) {
  // Shared, because the waiter may be gone before set_value has returned.
  const auto done = std::make_shared<std::promise<void>>();
  std::future<void> waiter = done->get_future();
  post([done, &work](EngineCore& core) {
    work(core);
    done->set_value();
  });
  waiter.wait();
}

RequestId Engine::submit(Request request, RequestEvents events) {
  const RequestId id{next_id_++};
  const Clock::time_point now = Clock::now();
  post([id, now, request = std::move(request),
        events = std::move(events)](EngineCore& core) mutable {
    core.submit(id, now, std::move(request), std::move(events));
  });
  return id;
}

void Engine::cancel(RequestId id) {
  post([id](EngineCore& core) { core.cancel(id); });
}

Reply Engine::run(Request request, RequestEvents events) {
  const auto finished = std::make_shared<std::promise<Reply>>();
  std::future<Reply> waiter = finished->get_future();
  events.on_finish = [finished, listener = std::move(events.on_finish)](const Reply& reply) {
    if (listener) listener(reply);
    finished->set_value(reply);
  };
  submit(std::move(request), std::move(events));
  return waiter.get();
}

}  // namespace weir

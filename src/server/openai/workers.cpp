#include "server/openai/workers.h"

#include <exception>

#include "base/check.h"

namespace weir {
namespace {

// Address space, not memory: pages come as they are touched.
constexpr size_t kStackBytes = size_t{256} << 20;

}  // namespace

Workers::Workers(int n_threads) {
  pthread_attr_t attributes;
  WEIR_CHECK(pthread_attr_init(&attributes) == 0);
  WEIR_CHECK(pthread_attr_setstacksize(&attributes, kStackBytes) == 0);
  for (int i = 0; i < n_threads; ++i) {
    pthread_t thread;
    WEIR_CHECK(pthread_create(&thread, &attributes, run, this) == 0);
    threads_.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
}

Workers::~Workers() { stop(); }

void Workers::stop() {
  std::vector<pthread_t> threads;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    threads.swap(threads_);
  }
  has_task_.notify_all();
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  // Outside of the lock: what a task holds may want to post when it goes.
  std::deque<std::function<void()>> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(tasks_);
}

void Workers::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) return;
    tasks_.push_back(std::move(task));
  }
  has_task_.notify_one();
}

void* Workers::run(void* self) {
  static_cast<Workers*>(self)->loop();
  return nullptr;
}

void Workers::loop() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      has_task_.wait(lock, [&] { return is_stopping_ || !tasks_.empty(); });
      if (is_stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      task();
    } catch (const std::exception&) {
      // The task's writer goes with it, and its client gets a 500.
    }
  }
}

}  // namespace weir

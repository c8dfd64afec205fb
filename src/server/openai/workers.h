#pragma once

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace weir {

// A few threads for work that neither the connections' threads nor the engine's may be kept waiting
// with: reading requests, templates, grammars, taking replies apart. Their stacks are deep, for
// libraries that descend by recursion into what clients send.
class Workers {
 public:
  explicit Workers(int n_threads);
  ~Workers();  // as stop()
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Any thread; never waits. What `task` throws is lost. Dropped after stop().
  void post(std::function<void()> task);
  // Ends when the tasks that run are done; the others are dropped.
  void stop();

 private:
  static void* run(void* self);
  void loop();

  std::mutex mutex_;
  std::condition_variable has_task_;
  std::deque<std::function<void()>> tasks_;
  bool is_stopping_ = false;
  std::vector<pthread_t> threads_;
};

}  // namespace weir

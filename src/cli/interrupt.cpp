#include "cli/interrupt.h"

#include <csignal>
#include <future>

namespace weir {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void on_interrupt(int) {
  g_interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

Reply run_interruptibly(Engine& engine, Request request, RequestEvents events) {
  const auto finished = std::make_shared<std::promise<Reply>>();
  std::future<Reply> waiter = finished->get_future();
  events.on_finish = [finished](const Reply& reply) { finished->set_value(reply); };

  g_interrupted = 0;
  const auto previous = std::signal(SIGINT, on_interrupt);
  const RequestId id = engine.submit(std::move(request), std::move(events));
  bool is_cancelled = false;
  while (waiter.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    if (g_interrupted && !is_cancelled) {
      engine.cancel(id);
      is_cancelled = true;
    }
  }
  std::signal(SIGINT, previous);
  return waiter.get();
}

}  // namespace weir

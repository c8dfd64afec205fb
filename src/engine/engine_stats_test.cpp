#include "engine/engine_stats.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <numeric>

#include "engine/engine.h"
#include "engine/testing/tiny_engine.h"

namespace weir {
namespace {

Request some_text(int64_t n_tokens, int64_t max_new) {
  Request request = greedy(std::vector<Token>(static_cast<size_t>(n_tokens), 20), max_new);
  request.ignore_end = true;
  return request;
}

uint64_t ended(const EngineStats& stats, FinishReason reason) {
  return stats.requests_by_outcome[static_cast<size_t>(reason)];
}

TEST(EngineStats, CountsWhatRequestsDid) {
  auto core = make_tiny_core(reuse_options());
  Request request = some_text(40, 5);
  request.conversation_name = "one";
  const Reply first = reply_to(*core, request);
  request.prompt.insert(request.prompt.end(), first.tokens.begin(), first.tokens.end());
  request.prompt.push_back(21);
  const Reply second = reply_to(*core, request);
  reply_to(*core, some_text(0, 1));

  const EngineStats stats = core->stats();
  EXPECT_EQ(ended(stats, FinishReason::length), 2u);
  EXPECT_EQ(ended(stats, FinishReason::failed), 1u);
  EXPECT_EQ(stats.prompt_tokens, 40u + 46u);
  EXPECT_EQ(stats.cached_tokens, static_cast<uint64_t>(second.usage.cached_tokens));
  EXPECT_GT(stats.cached_tokens, 0u);
  EXPECT_EQ(stats.generated_tokens, 10u);
  // The last token of a reply is never read.
  EXPECT_EQ(stats.computed_tokens, 40 + 4 + 46 - stats.cached_tokens + 4);
  EXPECT_EQ(stats.recomputed_tokens, 0u);
  EXPECT_EQ(stats.requests_with_hit, 1u);
  EXPECT_EQ(stats.requests_with_miss, 1u);
  EXPECT_EQ(stats.conversations, 1);
  EXPECT_EQ(stats.steps, 11u);  // the first prompt in two: it leaves a restart point before its end
  EXPECT_EQ(std::accumulate(stats.step_times.counts.begin(), stats.step_times.counts.end(), 0ull),
            stats.steps);
  EXPECT_GT(stats.tokens_per_second, 0);

  int64_t tags = 0;
  for (const Bytes bytes : stats.kv_by_tag) tags += bytes.v;
  EXPECT_EQ(tags, stats.kv_used.v);
  EXPECT_EQ(stats.kv_used, core->budget().used());
}

TEST(EngineStats, WhatIsReadAgainAfterGivingWayIsRecomputed) {
  EngineOptions options = tiny_options();
  options.kv_budget = {make_tiny_core()->need(300, 1)};
  options.overcommit = true;
  auto core = make_tiny_core(options);
  int n_finished = 0;
  RequestEvents events;
  events.on_finish = [&](const Reply& reply) {
    EXPECT_EQ(reply.reason, FinishReason::length);
    ++n_finished;
  };
  for (int i = 0; i < 2; ++i) core->submit(some_text(60, 200), events);
  while (n_finished < 2) ASSERT_TRUE(core->step());
  const EngineStats stats = core->stats();
  EXPECT_GT(stats.preemptions, 0u);
  EXPECT_GT(stats.recomputed_tokens, 0u);
  EXPECT_EQ(stats.computed_tokens, 2 * (60u + 199u) + stats.recomputed_tokens);
}

TEST(EngineStats, LateRequestsAreUnavailableAndOthersAreNot) {
  EngineOptions options = tiny_options();
  options.max_running = 1;
  auto core = make_tiny_core(options);
  int n_started = 0;
  std::vector<Reply> replies;
  RequestEvents events;
  events.on_start = [&] { ++n_started; };
  events.on_finish = [&](const Reply& reply) { replies.push_back(reply); };
  core->submit(some_text(10, 5), events);
  Request late = some_text(10, 5);
  late.start_before = std::chrono::steady_clock::now();
  core->submit(late, events);
  while (core->step()) {
  }
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].reason, FinishReason::failed);
  EXPECT_EQ(replies[0].error.code(), Code::unavailable);
  EXPECT_EQ(replies[1].reason, FinishReason::length);
  EXPECT_EQ(n_started, 1);
}

// A step that hangs, played by an event that does not return.
TEST(EngineStats, AnEngineWhoseStepHangsIsStalledAndStillTakesRequests) {
  Result<std::unique_ptr<Engine>> engine =
      Engine::create(tiny_model(), cpu_device(), tiny_options());
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ((*engine)->stats().stalled_seconds, 0);

  std::mutex mutex;
  std::condition_variable changed;
  bool hangs = false, may_go_on = false;
  RequestEvents events;
  events.on_start = [&] {
    std::unique_lock lock(mutex);
    hangs = true;
    changed.notify_all();
    changed.wait(lock, [&] { return may_go_on; });
  };
  std::promise<void> finished;
  events.on_finish = [&](const Reply&) { finished.set_value(); };
  (*engine)->submit(some_text(10, 2), events);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return hangs; });
  }
  const RequestId other = (*engine)->submit(some_text(10, 2), {});
  (*engine)->cancel(other);
  const double before = (*engine)->stats().stalled_seconds;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GE((*engine)->stats().stalled_seconds, before + 0.005);
  {
    const std::lock_guard lock(mutex);
    may_go_on = true;
  }
  changed.notify_all();
  finished.get_future().wait();
  while ((*engine)->stats().stalled_seconds != 0) std::this_thread::yield();
  EXPECT_EQ(ended((*engine)->stats(), FinishReason::length), 1u);
}

TEST(EngineStats, RatesFadeWithoutEvents) {
  double rate = 0;
  for (int i = 0; i < 1000; ++i) rate = updated_rate(rate, 5, 0.1);
  EXPECT_NEAR(rate, 50, 0.1);
  EXPECT_LT(decayed_rate(rate, 60), 1);
}

}  // namespace
}  // namespace weir

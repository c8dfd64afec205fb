#include "server/request_gate.h"

#include <gtest/gtest.h>

#include <future>

#include "engine/testing/tiny_engine.h"
#include "http/testing/recording_writer.h"

namespace weir {
namespace {

using namespace std::chrono_literals;

class RequestGateTest : public testing::Test {
 protected:
  // One request runs, one may wait.
  void open(std::chrono::milliseconds max_wait = 60s) {
    EngineOptions options = tiny_options();
    options.max_running = 1;
    options.max_context = 2000;
    engine = std::move(*Engine::create(tiny_model(), cpu_device(), options));
    gate = std::make_unique<RequestGate>(
        *engine, GateOptions{.max_running = 1, .max_waiting = 1, .max_wait = max_wait});
  }
  static Request endless() {
    Request request = greedy(tiny_tokens("Once"), -1);
    request.ignore_end = true;
    return request;
  }
  // The reply of a request that was let in.
  std::future<Reply> submit(Request request, ResponseWriter& client) {
    const auto promise = std::make_shared<std::promise<Reply>>();
    RequestEvents events;
    events.on_finish = [promise](const Reply& reply) { promise->set_value(reply); };
    std::vector<Submission> one(1);
    one[0] = {std::move(request), std::move(events)};
    const Admission admission = gate->submit(std::move(one), client);
    EXPECT_FALSE(admission.refusal.has_value()) << admission.refusal->body;
    return promise->get_future();
  }
  // Of so many such requests from one client.
  int refusal_status(const Request& request, size_t n = 1) {
    RecordingWriter client;
    const Admission admission = gate->submit(std::vector<Submission>(n, {request, {}}), client);
    last_refusal = admission.refusal.value_or(HttpResponse{});
    return last_refusal.status;
  }
  bool has_retry_after() const {
    for (const auto& [name, value] : last_refusal.headers) {
      if (name == "Retry-After") return true;
    }
    return false;
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<RequestGate> gate;
  HttpResponse last_refusal;
  RecordingWriter writer;
};

TEST_F(RequestGateTest, TellsTheThirdToComeLater) {
  open();
  RecordingWriter first_writer, second_writer;
  std::future<Reply> first = submit(endless(), first_writer);
  std::future<Reply> second = submit(endless(), second_writer);
  EXPECT_EQ(refusal_status(endless()), 429);
  EXPECT_TRUE(has_retry_after());
  EXPECT_EQ(gate->stats().refused_full, 1u);
  first_writer.go();
  EXPECT_EQ(first.get().reason, FinishReason::cancelled);
  while (gate->stats().waiting > 0 || gate->stats().running != 1) std::this_thread::yield();
  RecordingWriter third_writer;
  std::future<Reply> third = submit(endless(), third_writer);
  second_writer.go();
  third_writer.go();
  EXPECT_EQ(second.get().reason, FinishReason::cancelled);
  EXPECT_EQ(third.get().reason, FinishReason::cancelled);
}

// All of a client's requests or none.
TEST_F(RequestGateTest, WhatDoesNotFitAsAWholeIsRefusedAsAWhole) {
  open();
  EXPECT_EQ(refusal_status(endless(), 3), 400);  // there is never room for three
  EXPECT_NE(last_refusal.body.find("3"), std::string::npos);
  EXPECT_EQ(gate->stats().running + gate->stats().waiting, 0);
  std::future<Reply> first = submit(endless(), writer);
  EXPECT_EQ(refusal_status(endless(), 2), 429);
  EXPECT_EQ(gate->stats().running + gate->stats().waiting, 1);
  writer.go();
  EXPECT_EQ(first.get().reason, FinishReason::cancelled);
  int64_t submitted = 0;
  engine->with_core([&](EngineCore& core) {
    for (const uint64_t n : core.stats().requests_by_outcome) submitted += static_cast<int64_t>(n);
  });
  EXPECT_EQ(submitted, 1);

  while (gate->stats().running + gate->stats().waiting > 0) std::this_thread::yield();
  RecordingWriter other;
  const Admission pair = gate->submit(std::vector<Submission>(2, {endless(), {}}), other);
  EXPECT_FALSE(pair.refusal);
  pair.cancel();
  while (gate->stats().running + gate->stats().waiting > 0) std::this_thread::yield();
}

TEST_F(RequestGateTest, WhatCanNeverRunIsRefusedWithTheNumbers) {
  open();
  EXPECT_EQ(refusal_status(greedy(std::vector<Token>(3000, 20), 1)), 400);
  EXPECT_NE(last_refusal.body.find("context_length_exceeded"), std::string::npos);
  EXPECT_NE(last_refusal.body.find("3000"), std::string::npos);
  EXPECT_NE(last_refusal.body.find("2000"), std::string::npos);
  EXPECT_EQ(refusal_status(greedy({}, 1)), 400);
  EXPECT_EQ(last_refusal.body.find("context_length_exceeded"), std::string::npos);
  EXPECT_EQ(gate->stats().refused_invalid, 2u);
}

TEST_F(RequestGateTest, WhoWaitsTooLongIsToldToComeLater) {
  open(50ms);
  std::future<Reply> first = submit(endless(), writer);
  while (gate->stats().running == 0) std::this_thread::yield();
  RecordingWriter other;
  const Reply late = submit(endless(), other).get();
  EXPECT_EQ(late.reason, FinishReason::failed);
  last_refusal = response_to(late.error);
  EXPECT_EQ(last_refusal.status, 503);
  EXPECT_TRUE(has_retry_after());
  writer.go();
  first.wait();
}

TEST_F(RequestGateTest, StoppingLetsRepliesFinishWithinGraceAndCutsTheRest) {
  open();
  Request brief = endless();
  brief.max_new_tokens = 5;
  std::future<Reply> finishes = submit(brief, writer);
  RecordingWriter other;
  std::future<Reply> is_cut = submit(endless(), other);
  finishes.wait();
  gate->stop(20ms);
  EXPECT_EQ(finishes.get().reason, FinishReason::length);
  EXPECT_EQ(is_cut.get().reason, FinishReason::cancelled);
  EXPECT_EQ(refusal_status(endless()), 503);
  EXPECT_EQ(gate->stats().refused_stopping, 1u);
}

}  // namespace
}  // namespace weir

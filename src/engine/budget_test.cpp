// The budget seen from the engine: admission, running out, giving back.
#include <gtest/gtest.h>

#include "engine/testing/tiny_engine.h"
#include "geometry/window.h"

namespace weir {
namespace {

std::vector<Token> some_tokens(int64_t n) {
  std::vector<Token> tokens(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) tokens[static_cast<size_t>(i)] = static_cast<Token>(300 + i % 97);
  return tokens;
}

Bytes planned(const KvLayout& layout, int64_t n) {
  Bytes total;
  for (const KvGroup& group : layout.groups) {
    total += held_blocks(group.retention, n, group.block_tokens) * group.block_bytes;
  }
  return total;
}

// After N tokens, resident KV == planned KV, byte for byte, around every block and window edge.
TEST(EngineBudget, ResidentBytesAreThePlannedBytes) {
  for (const int block_tokens : {16, 32, 64}) {
    EngineOptions options = tiny_options();
    options.kv.block_tokens = block_tokens;
    const auto core = make_tiny_core(options);
    for (const int64_t edge : {16, 32, 64, 127, 128, 129, 160, 192, 256, 255 + 128, 640}) {
      for (const int64_t n : {edge - 1, edge, edge + 1}) {
        const Reply reply = reply_to(*core, greedy(some_tokens(n), 0));
        ASSERT_EQ(reply.kv_tokens, n);
        EXPECT_EQ(reply.kv.resident(), planned(core->cache().layout(), n))
            << n << " tokens, B " << block_tokens;
        EXPECT_EQ(core->budget().used().v, 0);
      }
    }
  }
}

// With several sequences under way, after every step.
TEST(EngineBudget, SeveralSequencesAddUp) {
  const auto core = make_tiny_core();
  struct Seen {
    int64_t in_kv = 0;
    bool is_finished = false;
  };
  std::vector<Seen> seen(5);
  const std::vector<int64_t> lengths{1, 100, 127, 300, 513};
  for (size_t i = 0; i < seen.size(); ++i) {
    RequestEvents events;
    events.on_prompt_progress = [&, i](int64_t done, int64_t) { seen[i].in_kv = done; };
    // The token just chosen is not in the KV; the one before it has just been written.
    events.on_token = [&, i, n = int64_t{0}](const TokenEvent&) mutable {
      seen[i].in_kv = lengths[i] + n++;
    };
    events.on_finish = [&, i](const Reply&) { seen[i].is_finished = true; };
    Request request = greedy(some_tokens(lengths[i]), 40);
    request.ignore_end = true;
    core->submit(request, std::move(events));
  }
  while (core->step()) {
    Bytes expected;
    for (const Seen& s : seen) {
      if (!s.is_finished) expected += planned(core->cache().layout(), s.in_kv);
    }
    ASSERT_EQ(core->cache().usage().resident(), expected);
  }
  EXPECT_EQ(core->budget().used().v, 0);
}

TEST(EngineBudget, PromptThatCannotFitIsRefusedWithTheNumbers) {
  EngineOptions options = tiny_options();
  options.kv_budget = {2 * kMiB};
  const auto core = make_tiny_core(options);
  const int64_t largest = core->largest_context();
  ASSERT_GT(largest, 200);
  ASSERT_LT(largest, 1900);
  const Reply reply = reply_to(*core, greedy(some_tokens(1900), 1));
  EXPECT_EQ(reply.reason, FinishReason::failed);
  EXPECT_EQ(reply.error.code(), Code::over_budget);
  EXPECT_EQ(reply.timings.prefill_tokens, 0);
  for (const std::string& part :
       {std::string("1900 tokens"), std::string("2 MiB"), std::to_string(largest)}) {
    EXPECT_NE(reply.error.message().find(part), std::string::npos) << reply.error.message();
  }
  // The named context is served; one token more is not.
  EXPECT_EQ(reply_to(*core, greedy(some_tokens(largest), 0)).reason, FinishReason::length);
  EXPECT_EQ(reply_to(*core, greedy(some_tokens(largest + 1), 0)).reason, FinishReason::failed);
  EXPECT_LE(core->budget().peak().v, 2 * kMiB);
  EXPECT_EQ(core->budget().used().v, 0);
}

// Field case 17: the reply ends with its own reason, everything before it intact; the engine goes
// on.
TEST(EngineBudget, ReplyThatRunsOutOfBudgetEndsWithItsOwnReason) {
  EngineOptions options = tiny_options();
  options.kv_budget = {2 * kMiB};
  const auto core = make_tiny_core(options);
  const int64_t largest = core->largest_context();
  Request request = greedy(some_tokens(100), 2000);
  request.ignore_end = true;
  const Reply reply = reply_to(*core, request);
  EXPECT_EQ(reply.reason, FinishReason::budget_full);
  EXPECT_EQ(reply.kv_tokens, largest);
  EXPECT_LE(core->budget().peak().v, 2 * kMiB);
  EXPECT_EQ(core->budget().used().v, 0);

  const auto roomy = make_tiny_core();
  request.max_new_tokens = std::ssize(reply.tokens);
  EXPECT_EQ(reply_to(*roomy, request).tokens, reply.tokens);
  EXPECT_EQ(reply_to(*core, greedy(some_tokens(50), 5)).reason, FinishReason::length);
}

// Several replies that together outgrow the budget: the younger ones step back and come again, and
// every one says what it says alone.
TEST(EngineBudget, YoungerRequestsGiveWayAndFinishLater) {
  EngineOptions options = tiny_options();
  options.kv_budget = {3 * kMiB};
  options.overcommit = true;
  std::vector<Request> requests;
  for (const int64_t n : {90, 110, 130}) {
    Request request = greedy(some_tokens(n), 400);
    request.ignore_end = true;
    requests.push_back(request);
  }
  std::vector<std::vector<Token>> alone;
  for (const Request& request : requests)
    alone.push_back(reply_to(*make_tiny_core(), request).tokens);

  const auto core = make_tiny_core(options);
  std::vector<Reply> replies(requests.size());
  size_t finished = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    RequestEvents events;
    events.on_finish = [&, i](const Reply& reply) {
      replies[i] = reply;
      ++finished;
    };
    core->submit(requests[i], std::move(events));
  }
  while (finished < requests.size()) {
    ASSERT_TRUE(core->step());
    ASSERT_LE(core->budget().used().v, 3 * kMiB);
    core->cache().check_invariants();
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(replies[i].reason, FinishReason::length);
    EXPECT_EQ(replies[i].tokens, alone[i]) << "request " << i;
  }
  EXPECT_LE(core->budget().peak().v, 3 * kMiB);
  EXPECT_EQ(core->budget().used().v, 0);
}

}  // namespace
}  // namespace weir

#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <optional>
#include <thread>

#include "engine/testing/tiny_engine.h"

namespace weir {
namespace {

std::string long_text(int words) {
  std::string text;
  for (int i = 0; i < words; ++i) text += i % 7 == 6 ? "the king said. " : "once upon a time ";
  return text;
}

TEST(Engine, GreedyReplyIsTheSameEveryTime) {
  const auto core = make_tiny_core();
  const Reply first = reply_to(*core, greedy(tiny_tokens(user_turn("Tell me a tale.")), 40));
  const Reply second = reply_to(*core, greedy(tiny_tokens(user_turn("Tell me a tale.")), 40));
  EXPECT_EQ(first.tokens, second.tokens);
  EXPECT_FALSE(first.text.empty());
  EXPECT_EQ(first.usage.prompt_tokens, std::ssize(tiny_tokens(user_turn("Tell me a tale."))));
  EXPECT_EQ(first.usage.cached_tokens, 0);
}

TEST(Engine, SeedDecidesASampledReply) {
  const auto core = make_tiny_core();
  const auto sampled = [&](uint32_t seed) {
    Request request = greedy(tiny_tokens("Once upon a time"), 30);
    request.sampling.temperature = 1.0f;
    request.sampling.seed = seed;
    return reply_to(*core, request).tokens;
  };
  EXPECT_EQ(sampled(1), sampled(1));
  EXPECT_NE(sampled(1), sampled(2));
}

TEST(Engine, EveryWayToEndHasItsReason) {
  EngineOptions options = tiny_options();
  options.max_context = 300;
  const auto core = make_tiny_core(options);
  const auto hello = tiny_tokens(user_turn("Hello!"));
  EXPECT_EQ(reply_to(*core, greedy(hello, 3)).reason, FinishReason::length);
  EXPECT_EQ(reply_to(*core, greedy(hello, 0)).reason, FinishReason::length);
  EXPECT_EQ(reply_to(*core, greedy(hello, 200)).reason, FinishReason::end_of_turn);

  Request endless = greedy(hello, -1);
  endless.ignore_end = true;
  const Reply full = reply_to(*core, endless);
  EXPECT_EQ(full.reason, FinishReason::context_full);
  EXPECT_EQ(full.usage.prompt_tokens + full.usage.completion_tokens, 300);

  Request stopped = greedy(tiny_tokens("Once upon a time there was a king"), 100);
  const Reply plain = reply_to(*core, stopped);
  const std::string stop = plain.text.substr(plain.text.size() / 2, 4);
  stopped.stop = {stop};
  const Reply cut = reply_to(*core, stopped);
  EXPECT_EQ(cut.reason, FinishReason::stop_string);
  EXPECT_EQ(cut.text, plain.text.substr(0, plain.text.find(stop)));
}

TEST(Engine, GrammarIsObeyed) {
  const auto core = make_tiny_core();
  Request request = greedy(tiny_tokens(user_turn("Hello!")), 20);
  request.sampling.grammar = "root ::= (\"yes\" | \"no\") \"!\"";
  const Reply reply = reply_to(*core, request);
  EXPECT_TRUE(reply.text == "yes!" || reply.text == "no!") << reply.text;
  request.sampling.grammar = "root ::= (";
  const Reply bad = reply_to(*core, request);
  EXPECT_EQ(bad.reason, FinishReason::failed);
  EXPECT_EQ(bad.error.code(), Code::invalid_input);
}

TEST(Engine, LogprobsAreReportedWhenAsked) {
  const auto core = make_tiny_core();
  const auto collect = [&](int32_t n) {
    std::vector<std::optional<TokenLogprobs>> seen;
    RequestEvents events;
    events.on_token = [&](const TokenEvent& event) {
      if (!event.is_new) return;
      seen.push_back(event.logprobs ? std::optional(*event.logprobs) : std::nullopt);
      if (event.logprobs) {
        EXPECT_EQ(event.logprobs->chosen.token, event.token);
      }
    };
    Request request = greedy(tiny_tokens(user_turn("Hello!")), 8);
    request.n_logprobs = n;
    core->submit(request, std::move(events));
    while (core->step()) {
    }
    return seen;
  };
  for (const auto& none : collect(-1)) EXPECT_FALSE(none);
  for (const auto& chosen : collect(0)) EXPECT_TRUE(chosen && chosen->top.empty());
  const auto three = collect(3);
  ASSERT_FALSE(three.empty());
  for (const auto& one : three) {
    ASSERT_TRUE(one && one->top.size() == 3);
    EXPECT_EQ(one->top[0].token, one->chosen.token);  // greedy
    EXPECT_EQ(one->top[0].logprob, one->chosen.logprob);
    EXPECT_GE(one->top[1].logprob, one->top[2].logprob);
  }
}

TEST(Engine, ControlTokensAreTextOnlyWhereAsked) {
  const auto core = make_tiny_core();
  const Token turn = tiny_tokens("<start_of_turn>").back();
  Request request = greedy(tiny_tokens("Once"), 1);
  request.sampling.logit_bias = {{turn, 1000}};
  EXPECT_EQ(reply_to(*core, request).text, "");
  request.visible_tokens = {turn};
  EXPECT_EQ(reply_to(*core, request).text, "<start_of_turn>");
}

TEST(Engine, BadRequestsAreRefusedBeforeAnyWork) {
  EngineOptions options = tiny_options();
  options.max_context = 64;
  const auto core = make_tiny_core(options);
  const auto refused = [&](const Request& request) {
    const Reply reply = reply_to(*core, request);
    EXPECT_EQ(reply.reason, FinishReason::failed);
    EXPECT_EQ(reply.timings.prefill_tokens, 0);
    EXPECT_EQ(core->budget().used().v, 0);
    return reply.error;
  };
  EXPECT_EQ(refused(greedy({}, 1)).code(), Code::invalid_input);
  EXPECT_EQ(refused(greedy({-1}, 1)).code(), Code::invalid_input);
  EXPECT_EQ(refused(greedy({1 << 30}, 1)).code(), Code::invalid_input);
  // Field case 29: both counts are named.
  const Status too_long = refused(greedy(std::vector<Token>(64, 10), 1));
  EXPECT_NE(too_long.message().find("64 tokens"), std::string::npos) << too_long.message();
  Request bad = greedy({10}, 1);
  bad.sampling.top_p = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refused(bad).code(), Code::invalid_input);
  bad = greedy({10}, 1);
  bad.tenant = 99;
  EXPECT_EQ(refused(bad).code(), Code::invalid_input);
  bad = greedy({10}, 1);
  bad.conversation_name = "line\nfeed";
  EXPECT_EQ(refused(bad).code(), Code::invalid_input);
}

// Field case 25: sequences of length 1, w-1, w, w+1 and 5w decode together and give what each gives
// alone; prompts of 3 and 50 join while they run.
TEST(Engine, NeighboursDoNotChangeAReply) {
  const int64_t w = 128;
  std::vector<Request> requests;
  const std::vector<Token> text = tiny_tokens(long_text(400));
  for (const int64_t n : {int64_t{1}, w - 1, w, w + 1, 5 * w, int64_t{3}, int64_t{50}}) {
    Request request = greedy(std::vector<Token>(text.begin(), text.begin() + n), 24);
    request.ignore_end = true;
    requests.push_back(request);
  }
  std::vector<std::vector<Token>> alone;
  for (const Request& request : requests) {
    alone.push_back(reply_to(*make_tiny_core(), request).tokens);
  }

  const auto core = make_tiny_core();
  std::vector<std::vector<Token>> together(requests.size());
  size_t finished = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    RequestEvents events;
    events.on_finish = [&, i](const Reply& reply) {
      together[i] = reply.tokens;
      ++finished;
    };
    core->submit(requests[i], std::move(events));
    if (i >= 4) {
      for (int step = 0; step < 3; ++step) core->step();
    }
  }
  while (finished < requests.size()) ASSERT_TRUE(core->step());
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(together[i], alone[i]) << "request " << i;
  EXPECT_EQ(core->budget().used().v, 0);
  core->cache().check_invariants();
}

TEST(Engine, CancelledRequestGivesItsMemoryBack) {
  const auto core = make_tiny_core();
  Reply result;
  RequestEvents events;
  events.on_finish = [&](const Reply& reply) { result = reply; };
  Request request = greedy(tiny_tokens(user_turn("Tell me a tale.")), 1000);
  request.ignore_end = true;
  const RequestId id = core->submit(request, std::move(events));
  for (int i = 0; i < 5; ++i) core->step();
  core->cancel(id);
  core->step();
  EXPECT_EQ(result.reason, FinishReason::cancelled);
  EXPECT_EQ(core->budget().used().v, 0);
  EXPECT_TRUE(core->is_idle());
}

// A device whose attention asks the executor to stop in the middle of a step.
class FailingDevice : public KvDevice {
 public:
  KvMemory& memory() override { return cpu_device().memory(); }
  const char* name() const override { return "failing"; }
  void store(const StoreArgs& args, int thread, int n_threads) override {
    cpu_device().store(args, thread, n_threads);
  }
  void attend(const AttendArgs& args, int thread, int n_threads) override {
    cpu_device().attend(args, thread, n_threads);
    if (fails_after >= 0 && fails_after-- == 0) core->executor().cancel();
  }
  EngineCore* core = nullptr;
  int fails_after = -1;  // attentions; -1: never
};

// Fails a step at each of its layers: the requests in it fail, everything else is as before.
TEST(Engine, StepThatFailsChangesNothingElse) {
  const std::vector<Token> prompt = tiny_tokens(user_turn("Tell me a tale."));
  const Reply expected = reply_to(*make_tiny_core(), greedy(prompt, 20));
  for (int layer = 0; layer < 12; ++layer) {
    FailingDevice device;
    auto core = *EngineCore::create(tiny_model(), device, tiny_options());
    device.core = core.get();
    Request request = greedy(prompt, 20);
    device.fails_after = layer;
    const Reply failed = reply_to(*core, request);
    EXPECT_EQ(failed.reason, FinishReason::failed) << layer;
    core->cache().check_invariants();
    EXPECT_EQ(reply_to(*core, request).tokens, expected.tokens) << layer;
    // Once more in the middle of the reply, which starts after one step for the prompt.
    device.fails_after = 12 * 6 + layer;
    EXPECT_EQ(reply_to(*core, request).reason, FinishReason::failed) << layer;
    EXPECT_EQ(reply_to(*core, request).tokens, expected.tokens) << layer;
    EXPECT_EQ(core->budget().used().v, 0);
  }
}

TEST(Engine, PenaltiesMayLookBackOnTheWholeContext) {
  const auto core = make_tiny_core();
  Request request = greedy(tiny_tokens("Once upon a time"), 60);
  const Reply plain = reply_to(*core, request);
  request.sampling.repeat_penalty = 1.8f;
  request.sampling.repeat_last_n = -1;
  EXPECT_NE(reply_to(*core, request).tokens, plain.tokens);
  request.sampling.repeat_last_n = -2;
  EXPECT_EQ(reply_to(*core, request).reason, FinishReason::failed);
}

TEST(Engine, ThreadServesManyCallers) {
  Result<std::unique_ptr<Engine>> engine =
      Engine::create(tiny_model(), cpu_device(), tiny_options());
  ASSERT_TRUE(engine.ok());
  const std::vector<Token> prompt = tiny_tokens(user_turn("Hello!"));
  const Reply alone = (*engine)->run(greedy(prompt, 12));
  std::vector<std::thread> callers;
  std::atomic<int> same{0};
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      if ((*engine)->run(greedy(prompt, 12)).tokens == alone.tokens) ++same;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(same, 6);
}

TEST(Engine, StoppingTheThreadCancelsWhatRuns) {
  std::atomic<bool> is_cancelled{false};
  {
    Result<std::unique_ptr<Engine>> engine =
        Engine::create(tiny_model(), cpu_device(), tiny_options());
    ASSERT_TRUE(engine.ok());
    Request request = greedy(tiny_tokens("Once"), -1);
    request.ignore_end = true;
    RequestEvents events;
    events.on_finish = [&](const Reply& reply) {
      is_cancelled = reply.reason == FinishReason::cancelled;
    };
    (*engine)->submit(request, std::move(events));
  }
  EXPECT_TRUE(is_cancelled);
}

}  // namespace
}  // namespace weir

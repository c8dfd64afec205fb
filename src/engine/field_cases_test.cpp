// Field cases about requests that go wrong: what fails, fails alone, says so, and leaves nothing.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "engine/testing/prompts.h"

namespace weir {
namespace {

constexpr int64_t kBlock = 16, kWindow = 128;

void run_until(EngineCore& core, const std::optional<Reply>& reply, int most_steps = 20'000) {
  for (int i = 0; i < most_steps && !reply; ++i) ASSERT_TRUE(core.step());
  ASSERT_TRUE(reply) << "no end after " << most_steps << " steps";
}

// Field case 10b: the KV of a prefix does not come back as it was left. The request is answered all
// the same, a warning names the reason, and the others go on.
TEST(FieldCases, ARestoreThatFailsIsReadAgain) {
  EngineOptions options = reuse_options();
  std::vector<std::string> warnings;
  options.on_warning = [&](const std::string& warning) { warnings.push_back(warning); };
  const auto core = make_tiny_core(options);
  const Request request = saying(text_tokens(300), 12), other = saying(text_tokens(90, 500), 60);
  reply_to(*core, request);

  std::optional<Reply> reply, neighbour;
  submit_to(*core, other, neighbour);
  for (int i = 0; i < 5; ++i) core->step();
  core->cache().set_resume_fault([] {
    return Status(Code::corrupt, "the local block at 288 has 4096 bytes instead of 8192");
  });
  submit_to(*core, request, reply);
  run_until(*core, reply);
  run_until(*core, neighbour);
  core->cache().check_invariants();

  EXPECT_EQ(reply->reason, FinishReason::length) << reply->error.message();
  EXPECT_EQ(reply->tokens, cold(request));
  EXPECT_EQ(neighbour->tokens, cold(other));
  EXPECT_EQ(reply->usage.cached_tokens, 0);
  EXPECT_EQ(reply->timings.prefill_tokens, 300);
  const EngineStats stats = core->stats();
  EXPECT_EQ(stats.lost_tokens[static_cast<size_t>(MissReason::load_failed)], 288u);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("4096 bytes instead of 8192"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("288"), std::string::npos) << warnings[0];

  core->cache().set_resume_fault({});  // it was not lost for good
  EXPECT_LE(read_again(reply_to(*core, request)), kBlock);
}

// Field case 17: a reply outgrows the budget beside another conversation.
TEST(FieldCases, AReplyAtTheCeilingLeavesOthersAlone) {
  for (const bool overcommit : {false, true}) {
    EngineOptions options = reuse_options({2 * kMiB});
    options.overcommit = overcommit;
    const auto core = make_tiny_core(options);
    const Request endless = saying(text_tokens(100), 3500),
                  other = saying(text_tokens(60, 500), 40);
    std::optional<Reply> full, neighbour;
    submit_to(*core, endless, full);
    submit_to(*core, other, neighbour);
    run_until(*core, full);
    run_until(*core, neighbour);
    EXPECT_EQ(full->reason, FinishReason::budget_full);
    EXPECT_EQ(neighbour->reason, FinishReason::length);
    EXPECT_EQ(neighbour->tokens, cold(other));
    EXPECT_LE(core->budget().peak().v, 2 * kMiB);
    EXPECT_EQ(core->cache().usage().resident().v, 0);
    core->cache().check_invariants();
  }
}

// Field case 17, the client that hangs up half-way: what it leaves is what a reply leaves that ends
// there by itself, to the byte of every purpose.
TEST(FieldCases, AReplyGivenUpLeavesWhatOneLeavesThatEndsThere) {
  constexpr int64_t kSaid = 70;
  for (const bool reuse : {false, true}) {
    const EngineOptions options = reuse ? reuse_options() : tiny_options();
    std::array<Bytes, kTagCount> left[2];
    for (const bool hangs_up : {false, true}) {
      const auto core = make_tiny_core(options);
      const Request other = saying(text_tokens(60, 500), 100);
      std::optional<Reply> neighbour, reply;
      submit_to(*core, other, neighbour);
      Request request = saying(text_tokens(200), hangs_up ? 500 : kSaid);
      int64_t said = 0;
      RequestEvents events;
      events.on_token = [&](const TokenEvent&) { ++said; };
      events.on_finish = [&](const Reply& ended) { reply = ended; };
      const RequestId id = core->submit(request, events);
      while (said < kSaid) ASSERT_TRUE(core->step());
      if (hangs_up) core->cancel(id);
      run_until(*core, neighbour);
      ASSERT_TRUE(reply);
      EXPECT_EQ(reply->reason, hangs_up ? FinishReason::cancelled : FinishReason::length);
      EXPECT_EQ(reply->tokens.size(), static_cast<size_t>(kSaid));
      EXPECT_EQ(neighbour->tokens, cold(other));
      core->cache().check_invariants();
      left[hangs_up] = core->stats().kv_by_tag;
    }
    EXPECT_EQ(left[0], left[1]);
    Bytes sum;
    for (const Bytes bytes : left[1]) sum += bytes;
    EXPECT_EQ(sum.v > 0, reuse);
  }
}

// Field case 18: the local rows of one page, a window, and a window with a chunk less or more, and
// beside them the global rows of the whole prompt. The large request is served or refused with the
// numbers, the small one behind it is served, and neither waits without end.
TEST(FieldCases, APoolTooSmallForARequestSaysSo) {
  constexpr int64_t kChunk = 64, kPrompt = 10 * kWindow;
  const auto probe = make_tiny_core(reuse_options());
  const std::vector<Token> large = text_tokens(kPrompt), small = text_tokens(12, 500);
  const std::vector<Token> reply_of_small = cold(saying(small, 3));
  int served = 0, refused = 0;
  for (const int64_t rows : {kBlock, kWindow, kWindow + kChunk - 1, kWindow + kChunk}) {
    for (const int64_t global_rows : {kPrompt / 4, kPrompt, kPrompt + kBlock}) {
      Bytes budget{256 * kKiB};  // what the index knows, and the rest of extents
      for (const KvGroup& group : probe->cache().layout().groups) {
        const bool is_global = group.retention.kind == LayerKind::global;
        budget += ceil_div(is_global ? global_rows : rows, kBlock) * group.block_bytes;
      }
      EngineOptions options = reuse_options(budget);
      options.step_tokens = kChunk;
      Result<std::unique_ptr<EngineCore>> core =
          EngineCore::create(tiny_model(), cpu_device(), options);
      if (!core) {  // the start is refused
        EXPECT_EQ(core.error().code(), Code::over_budget);
        continue;
      }
      std::optional<Reply> first, second;
      submit_to(**core, saying(large, 1), first);
      submit_to(**core, saying(small, 3), second);
      run_until(**core, second);
      run_until(**core, first);
      EXPECT_EQ(second->reason, FinishReason::length) << second->error.message();
      EXPECT_EQ(second->tokens, reply_of_small);
      EXPECT_LE((*core)->budget().peak(), budget);
      if (first->reason == FinishReason::length) {
        ++served;
        continue;
      }
      ++refused;
      EXPECT_EQ(first->error.code(), Code::over_budget);
      EXPECT_EQ(first->timings.prefill_tokens, 0);
      EXPECT_NE(first->error.message().find(std::to_string(kPrompt) + " tokens"), std::string::npos)
          << first->error.message();
    }
  }
  EXPECT_GT(served, 0);
  EXPECT_GT(refused, 0);
}

// Field case 30: given up while queued, while its prompt is read and while it replies, at a hundred
// random moments. Its work ends with the step under way; what was read is found by the next
// request.
TEST(FieldCases, ARequestGivenUpEndsWithItsStepAndItsWorkIsKept) {
  EngineOptions options = reuse_options();
  options.max_running = 2;
  options.step_tokens = 32;
  const auto core = make_tiny_core(options);
  uint32_t random = 30;
  const auto draw = [&](uint32_t n) {
    random = random * 1664525u + 1013904223u;
    return (random >> 8) % n;
  };
  int in_queue = 0, in_prompt = 0, in_reply = 0;
  for (int round = 0; round < 100; ++round) {
    const std::vector<Token> prompt = text_tokens(150, 300 + 16 * round);
    std::optional<Reply> blockers[2], reply;
    const bool is_queued = round % 4 == 0;
    if (is_queued)
      for (auto& blocker : blockers) submit_to(*core, saying(text_tokens(8, 3500), 30), blocker);
    RequestEvents events;
    int64_t said = 0;
    events.on_token = [&](const TokenEvent&) { ++said; };
    events.on_finish = [&](const Reply& ended) { reply = ended; };
    const RequestId id = core->submit(saying(prompt, 400), events);
    for (uint32_t steps = draw(12); steps > 0; --steps) core->step();
    const uint64_t computed = core->stats().computed_tokens;
    core->cancel(id);
    core->step();
    ASSERT_TRUE(reply) << round;
    ASSERT_EQ(reply->reason, FinishReason::cancelled);
    // The step was the others'.
    EXPECT_LE(core->stats().computed_tokens - computed, is_queued ? 2u * 32u : 0u);
    ++(reply->kv_tokens == 0 ? in_queue : said == 0 ? in_prompt : in_reply);
    while (core->step()) {
    }
    const Reply next = reply_to(*core, saying(prompt, 1));
    const int64_t kept =
        std::min<int64_t>(reply->kv_tokens, std::ssize(prompt) - 1) / kBlock * kBlock;
    EXPECT_EQ(next.usage.cached_tokens, kept) << round;
    EXPECT_EQ(core->cache().usage().resident().v, 0);
    core->cache().check_invariants();
  }
  EXPECT_GT(in_queue, 10);
  EXPECT_GT(in_prompt, 10);
  EXPECT_GT(in_reply, 10);
}

// Field case 31: what is cached is told exactly, and each miss carries its own reason.
class TruthAboutReuse : public testing::Test {
 protected:
  struct Told {
    int64_t cached, lost;
    MissReason reason;
  };
  Told ask(std::vector<Token> prompt) {
    const EngineStats before = core->stats();
    const int64_t n = std::ssize(prompt);
    const Reply reply = reply_to(*core, saying(std::move(prompt), 1));
    const EngineStats after = core->stats();
    EXPECT_EQ(reply.usage.prompt_tokens, n);
    EXPECT_EQ(reply.timings.prefill_tokens, n - reply.usage.cached_tokens);
    EXPECT_EQ(after.computed_tokens - before.computed_tokens,
              static_cast<uint64_t>(n - reply.usage.cached_tokens));
    EXPECT_EQ(after.cached_tokens - before.cached_tokens,
              static_cast<uint64_t>(reply.usage.cached_tokens));
    Told told{reply.usage.cached_tokens, 0, reply.reuse.miss};
    for (size_t i = 0; i < kMissReasonCount; ++i) {
      const auto lost = static_cast<int64_t>(after.lost_tokens[i] - before.lost_tokens[i]);
      told.lost += lost;
      if (lost > 0) {
        EXPECT_EQ(static_cast<MissReason>(i), told.reason);
      }
    }
    last = reply;
    return told;
  }
  std::unique_ptr<EngineCore> core = make_tiny_core(reuse_options());
  Reply last;
};

TEST_F(TruthAboutReuse, OfAHundredTokensNoneHalfAndAllButOne) {
  const std::vector<Token> prompt = text_tokens(100);
  Told told = ask(prompt);
  EXPECT_EQ(told.cached, 0);
  EXPECT_EQ(told.reason, MissReason::never_stored);
  EXPECT_EQ(last.reuse.common, 0);

  // An edit after 50 tokens: the point used instead is the block's boundary before it.
  std::vector<Token> edited = prompt;
  edited[50] = 3500;
  told = ask(edited);
  EXPECT_EQ(last.reuse.common, 50);
  EXPECT_EQ(told.reason, MissReason::never_stored);
  EXPECT_EQ(last.reuse.restart, told.cached);
  EXPECT_EQ(told.cached + told.lost, 48);

  edited = prompt;
  edited[99] = 3500;
  told = ask(edited);
  EXPECT_EQ(told.cached, 96);
  EXPECT_EQ(told.lost, 0);
  EXPECT_EQ(last.reuse.restart, 96);
  told = ask(prompt);
  EXPECT_EQ(told.cached, 96);
  EXPECT_EQ(told.reason, MissReason::none);
}

TEST_F(TruthAboutReuse, AnEvictionAMissingCheckpointAndARestartHaveTheirOwnReasons) {
  const std::vector<Token> prompt = text_tokens(700);
  ask(prompt);
  // The middle of a long text: its global rows are there and its windows are not.
  std::vector<Token> edited(prompt.begin(), prompt.begin() + 330);
  const Told no_window = ask(joined(edited, text_tokens(20, 3500)));
  EXPECT_EQ(no_window.reason, MissReason::window_gone);
  EXPECT_EQ(last.reuse.common, 330);
  EXPECT_EQ(no_window.cached + no_window.lost, 320);

  const Bytes limit = core->budget().limit();
  EXPECT_TRUE(core->set_budget(core->need(40, 1)).ok());
  EXPECT_TRUE(core->set_budget(limit).ok());
  const Told evicted = ask(prompt);
  EXPECT_EQ(evicted.reason, MissReason::evicted);
  EXPECT_EQ(evicted.cached + evicted.lost, 688);

  core = make_tiny_core(reuse_options());  // a restart: nothing is known, and nothing was lost
  const Told restarted = ask(prompt);
  EXPECT_EQ(restarted.reason, MissReason::never_stored);
  EXPECT_EQ(restarted.lost, 0);
}

}  // namespace
}  // namespace weir

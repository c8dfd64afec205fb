// Many conversations on one long beginning: it is read once and kept once, and each of them costs
// its own tokens and one window.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/testing/prompts.h"
#include "geometry/window.h"

namespace weir {
namespace {

constexpr int64_t kBlock = 16, kReply = 3;

struct Crowd {
  int64_t conversations;
  int64_t system;  // tokens that all share
  int64_t own;     // and that each has behind them
};

std::unique_ptr<EngineCore> core_for(const Crowd& crowd) {
  EngineOptions options = reuse_options({256 * kMiB});
  options.max_context = crowd.system + crowd.own + 64;
  options.max_running = crowd.conversations;
  options.step_tokens = 2 * crowd.conversations * crowd.own;  // all of them in one step
  options.rewind_bound = 0;  // no restart points but at ends and branches
  return make_tiny_core(options);
}

std::vector<std::vector<Token>> prompts_of(const Crowd& crowd) {
  const std::vector<Token> system = text_tokens(crowd.system);
  std::vector<std::vector<Token>> prompts;
  for (int64_t i = 0; i < crowd.conversations; ++i) {
    std::vector<Token> own = text_tokens(crowd.own, 600);
    own.front() = static_cast<Token>(1000 + i);  // they part at once
    prompts.push_back(joined(system, own));
  }
  return prompts;
}

// Blocks that sequences of these lengths hold when they have everything before `system` in common.
Bytes held_together(const KvGroup& group, int64_t system, const std::vector<int64_t>& lengths) {
  int64_t own = 0, shared = 0;
  for (const int64_t n : lengths) {
    const int64_t first = first_needed_block(group.retention, n, kBlock);
    own += ceil_div(n, kBlock) - std::max(first, system / kBlock);
    shared = std::max(shared, system / kBlock - first);
  }
  return (own + shared) * group.block_bytes;
}

void expect_live_bytes(EngineCore& core, int64_t system, const std::vector<int64_t>& lengths) {
  Bytes global, local;
  for (const KvGroup& group : core.cache().layout().groups) {
    const bool is_global = group.retention.kind == LayerKind::global;
    (is_global ? global : local) += held_together(group, system, lengths);
  }
  EXPECT_EQ(core.budget().used(Tag::live_global), global);
  EXPECT_EQ(core.budget().used(Tag::live_local), local);
}

// All are in the queue before the first step.
void come_at_once(const Crowd& crowd) {
  const auto core = core_for(crowd);
  const std::vector<std::vector<Token>> prompts = prompts_of(crowd);
  std::vector<Reply> replies(prompts.size());
  std::vector<int64_t> said(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    RequestEvents events;
    events.on_token = [&, i](const TokenEvent&) { ++said[i]; };
    events.on_finish = [&, i](const Reply& reply) { replies[i] = reply; };
    core->submit(saying(prompts[i], kReply), std::move(events));
  }
  bool ran_together = false;
  while (core->step()) {
    if (core->stats().running < crowd.conversations || std::ranges::min(said) == 0) continue;
    ran_together = true;
    std::vector<int64_t> lengths;  // the last token of a reply is not in the KV yet
    for (const int64_t n : said) lengths.push_back(crowd.system + crowd.own + n - 1);
    expect_live_bytes(*core, crowd.system, lengths);
    core->cache().check_invariants();
  }
  EXPECT_TRUE(ran_together);
  int64_t read = 0;
  for (size_t i = 0; i < replies.size(); ++i) {
    ASSERT_EQ(replies[i].reason, FinishReason::length) << i << replies[i].error.message();
    EXPECT_EQ(replies[i].usage.cached_tokens, i == 0 ? 0 : crowd.system);
    read += replies[i].timings.prefill_tokens;
  }
  EXPECT_EQ(read, crowd.system + crowd.conversations * crowd.own);
  EXPECT_EQ(core->stats().computed_tokens,
            static_cast<uint64_t>(read + crowd.conversations * (kReply - 1)));
  for (const size_t i : {size_t{0}, prompts.size() / 2, prompts.size() - 1}) {
    EXPECT_EQ(replies[i].tokens,
              reply_to(*core_for({1, crowd.system, crowd.own}), saying(prompts[i], kReply)).tokens);
  }
}

TEST(Crowd, TwoHundredAtOnceReadAndKeepTheSystemPromptOnce) {
  come_at_once({.conversations = 200, .system = 4096, .own = 40});
}

TEST(Crowd, EachHasOneWindowOfItsOwnOnceItHasThatManyTokens) {
  come_at_once({.conversations = 20, .system = 512, .own = 300});
}

// The same when each comes after the one before has ended, and everything is kept for its return.
TEST(Crowd, TwoHundredInTurnReadAndKeepTheSystemPromptOnce) {
  const Crowd crowd{.conversations = 200, .system = 4096, .own = 40};
  const auto core = core_for(crowd);
  const std::vector<std::vector<Token>> prompts = prompts_of(crowd);
  reply_to(*core, saying(text_tokens(crowd.system + 1), 1));
  const auto used = [&](Tag tag) { return core->budget().used(tag); };
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Bytes idle = used(Tag::idle), restart = used(Tag::restart);
    const Reply reply = reply_to(*core, saying(prompts[i], kReply));
    ASSERT_EQ(reply.reason, FinishReason::length);
    EXPECT_EQ(reply.timings.prefill_tokens, crowd.own) << i;
    // Full blocks of its own, which are all in its last window.
    const int64_t blocks = (crowd.own + kReply - 1) / kBlock;
    for (const KvGroup& group : core->cache().layout().groups) {
      const bool is_global = group.retention.kind == LayerKind::global;
      EXPECT_EQ(is_global ? used(Tag::idle) - idle : used(Tag::restart) - restart,
                blocks * group.block_bytes)
          << i;
    }
  }
  EXPECT_EQ(used(Tag::live_global) + used(Tag::live_local), Bytes{});
  EXPECT_EQ(core->stats().evictions, 0u);
  core->cache().check_invariants();
}

}  // namespace
}  // namespace weir

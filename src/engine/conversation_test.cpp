#include "engine/conversation.h"

#include <gtest/gtest.h>

#include "engine/testing/tiny_engine.h"

namespace weir {
namespace {

Request in_conversation(ConversationId id, const std::string& text, int64_t max_new) {
  Request request = greedy(tiny_tokens(text), max_new);
  request.conversation = id;
  return request;
}

// Field case 2: 40 turns, the whole history sent each time. Positions rise by one a token, local
// rows stay under their cap, no reply is empty without a reason.
TEST(Conversation, PositionsAndRowsStayRightOverManyTurns) {
  const auto core = make_tiny_core();
  const ConversationId id = core->conversations().open();
  std::string history;
  for (int turn = 0; turn < 40; ++turn) {
    history += user_turn("Tell me about the king " + std::to_string(turn) + ".");
    const Reply reply = reply_to(*core, in_conversation(id, history, 3));
    ASSERT_EQ(reply.reason == FinishReason::failed, false) << reply.error.message();
    ASSERT_FALSE(reply.tokens.empty());
    const Conversation& conversation = *core->conversations().find(id);
    EXPECT_EQ(core->cache().length(conversation.seq), std::ssize(conversation.tokens));
    EXPECT_EQ(core->cache().next_position(conversation.seq), std::ssize(conversation.tokens));
    if (turn > 0) {
      EXPECT_GT(reply.usage.cached_tokens, reply.usage.prompt_tokens - 64);
    }
    history += reply.text + "<end_of_turn>\n";
    core->cache().check_invariants();
  }
  EXPECT_TRUE(core->conversations().close(id).ok());
  EXPECT_EQ(core->budget().used().v, 0);
}

// Field case 7: the same request again processes the last token only, and says the same.
TEST(Conversation, SameRequestTwiceReadsOneToken) {
  const auto core = make_tiny_core();
  const ConversationId id = core->conversations().open();
  const std::string prompt = user_turn("Tell me a tale about a golden goose and a king.");
  const Reply first = reply_to(*core, in_conversation(id, prompt, 300));
  const Reply second = reply_to(*core, in_conversation(id, prompt, 300));
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_LE(second.usage.prompt_tokens - second.usage.cached_tokens, 1 + 16);
  EXPECT_EQ(first.usage.cached_tokens, 0);
}

// Taking back a turn whose reply is longer than the window goes back to a checkpoint.
TEST(Conversation, UndoBeyondTheWindowRestartsFromACheckpoint) {
  const auto core = make_tiny_core();
  const ConversationId id = core->conversations().open();
  std::string history = user_turn("My name is Matilda.");
  const Reply hello = reply_to(*core, in_conversation(id, history, 30));
  history += hello.text + "<end_of_turn>\n";
  Request tale = in_conversation(id, history + user_turn("Tell me a tale."), 400);
  tale.ignore_end = true;
  reply_to(*core, tale);

  const std::string other = history + user_turn("What is my name?");
  const Reply warm = reply_to(*core, in_conversation(id, other, 30));
  EXPECT_GT(warm.usage.cached_tokens, 0);
  EXPECT_LE(warm.usage.prompt_tokens - warm.usage.cached_tokens, 64);
  EXPECT_NE(warm.text.find("Matilda"), std::string::npos) << warm.text;
  EXPECT_EQ(warm.tokens, reply_to(*make_tiny_core(), greedy(tiny_tokens(other), 30)).tokens);
}

TEST(Conversation, ForksGoTheirOwnWay) {
  const auto core = make_tiny_core();
  const ConversationId first = core->conversations().open();
  std::string history = user_turn("My name is Matilda.");
  history += reply_to(*core, in_conversation(first, history, 30)).text + "<end_of_turn>\n";
  const Result<ConversationId> second = core->conversations().fork(first);
  ASSERT_TRUE(second.ok());
  const Bytes before = core->budget().used();
  const std::string ask = history + user_turn("What is my name?");
  const Reply a = reply_to(*core, in_conversation(first, ask, 30));
  const Reply b = reply_to(*core, in_conversation(*second, ask, 30));
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.usage.cached_tokens, b.usage.cached_tokens);
  EXPECT_GE(core->budget().used(), before);
  EXPECT_TRUE(core->conversations().close(first).ok());
  const Reply c = reply_to(*core, in_conversation(*second, ask, 30));
  EXPECT_EQ(c.tokens, a.tokens);
  EXPECT_TRUE(core->conversations().close(*second).ok());
  EXPECT_EQ(core->budget().used().v, 0);
}

// Idle conversations give way to a running one, and come back with the same answer.
TEST(Conversation, EvictedConversationIsReadAgain) {
  EngineOptions options = tiny_options();
  options.kv_budget = {2 * kMiB};
  const auto core = make_tiny_core(options);
  const ConversationId id = core->conversations().open();
  const std::string prompt = user_turn("Tell me a tale.");
  const Reply first = reply_to(*core, in_conversation(id, prompt, 40));
  Request big = greedy(std::vector<Token>(static_cast<size_t>(core->largest_context()), 400), 0);
  EXPECT_EQ(reply_to(*core, big).reason, FinishReason::length);
  const Reply again = reply_to(*core, in_conversation(id, prompt, 40));
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.usage.cached_tokens, 0);
  EXPECT_LE(core->budget().peak().v, 2 * kMiB);
}

// A branch can be taken back as far as the chat it came from.
TEST(Conversation, ForkKeepsTheCheckpoints) {
  const auto core = make_tiny_core();
  const ConversationId id = core->conversations().open();
  std::string history = user_turn("My name is Matilda.");
  history += reply_to(*core, in_conversation(id, history, 30)).text + "<end_of_turn>\n";
  Request tale = in_conversation(id, history + user_turn("Tell me a tale."), 400);
  tale.ignore_end = true;
  reply_to(*core, tale);
  const ConversationId branch = *core->conversations().fork(id);
  const Reply back = reply_to(*core, in_conversation(branch, history + user_turn("Hello!"), 5));
  EXPECT_GT(back.usage.cached_tokens, 0);
  EXPECT_LE(back.usage.prompt_tokens - back.usage.cached_tokens, 64);
}

// Checkpoints are bounded, the first and the latest stay, and they spread over the history.
TEST(Conversation, CheckpointsAreThinnedByTheGapTheyLeave) {
  const auto core = make_tiny_core();
  const ConversationId id = core->conversations().open();
  std::string history;
  for (int turn = 0; turn < 40; ++turn) {
    history += user_turn("Tell me about the king " + std::to_string(turn) + ".");
    history += reply_to(*core, in_conversation(id, history, 8)).text + "<end_of_turn>\n";
  }
  const Conversation& conversation = *core->conversations().find(id);
  const auto& points = conversation.checkpoints;
  ASSERT_EQ(points.size(), ConversationStore::kMaxCheckpoints);
  EXPECT_LT(points.front().length, 40);
  EXPECT_GT(points.back().length, std::ssize(conversation.tokens) - 40);
  int64_t widest = 0;
  for (size_t i = 1; i < points.size(); ++i) {
    widest = std::max(widest, points[i].length - points[i - 1].length);
  }
  // Even spreading would leave a seventh; two to one is what removing the smallest gap keeps to.
  EXPECT_LE(widest, 2 * std::ssize(conversation.tokens) / 7 + 40);
}

TEST(Conversation, BusyConversationCannotBeClosedOrForked) {
  const auto core = make_tiny_core();
  const ConversationId id = core->conversations().open();
  Request endless = in_conversation(id, "Once", 1000);
  endless.ignore_end = true;
  bool is_cancelled = false;
  RequestEvents events;
  events.on_finish = [&](const Reply& reply) {
    is_cancelled = reply.reason == FinishReason::cancelled;
  };
  const RequestId request = core->submit(endless, std::move(events));
  core->step();
  EXPECT_FALSE(core->conversations().close(id).ok());
  EXPECT_FALSE(core->conversations().fork(id).ok());
  // A second request waits for the first.
  Reply late;
  RequestEvents late_events;
  late_events.on_finish = [&](const Reply& reply) { late = reply; };
  core->submit(in_conversation(id, "Twice", 2), std::move(late_events));
  core->step();
  core->cancel(request);
  while (!is_cancelled) core->step();
  while (!core->is_idle()) core->step();
  EXPECT_EQ(late.reason, FinishReason::length);
  EXPECT_TRUE(core->conversations().close(id).ok());
  EXPECT_EQ(core->budget().used().v, 0);
}

}  // namespace
}  // namespace weir

// Conversations that come back: what of them is read again, and that the answers are the same.
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <numeric>

#include "engine/testing/prompts.h"
#include "geometry/window.h"
#include "plan/rewind_plan.h"

namespace weir {
namespace {

constexpr int64_t kBlock = 16, kWindow = 128;

// The constant that reuse costs: prompts restart at the boundary of a block.
constexpr int64_t kConstant = kBlock;

uint64_t lost_tokens(const EngineStats& stats) {
  return std::accumulate(stats.lost_tokens.begin(), stats.lost_tokens.end(), uint64_t{0});
}

// Field case 2: 40 turns, the whole history sent each time.
TEST(Reuse, EachTurnReadsWhatIsNew) {
  const auto core = make_tiny_core(reuse_options());
  std::vector<Token> history;
  for (int turn = 0; turn < 40; ++turn) {
    history = joined(history, text_tokens(5, 300 + turn));
    const Reply reply = reply_to(*core, saying(history, 3));
    ASSERT_EQ(reply.reason, FinishReason::length) << reply.error.message();
    if (turn > 0) {
      EXPECT_LE(read_again(reply), 5 + 1 + kConstant) << turn;
    }
    EXPECT_EQ(reply.kv_tokens, reply.usage.prompt_tokens + 2);
    history = joined(history, reply.tokens);
    core->cache().check_invariants();
  }
  EXPECT_EQ(reply_to(*core, saying(history, 20)).tokens, cold(saying(history, 20)));
}

// Field cases 6 and 7.
TEST(Reuse, TheSamePromptAgain) {
  for (const int64_t n : {int64_t{50}, kWindow - 1, kWindow, 3 * kWindow + 5}) {
    const auto core = make_tiny_core(reuse_options());
    const Request request = saying(text_tokens(n), 20);
    const Reply first = reply_to(*core, request);
    EXPECT_EQ(first.usage.cached_tokens, 0);
    for (int again = 0; again < 3; ++again) {
      const Reply next = reply_to(*core, request);
      EXPECT_LE(read_again(next), kConstant) << n;
      EXPECT_EQ(next.tokens, first.tokens) << n;
    }
  }
}

// Field case 9: the reply without its reasoning continues from the prompt.
TEST(Reuse, ReasoningTakenOutOfTheHistory) {
  const auto core = make_tiny_core(reuse_options());
  const std::vector<Token> prompt = text_tokens(400);
  const Reply reply = reply_to(*core, saying(prompt, 250));
  std::vector<Token> next = joined(prompt, {reply.tokens.end() - 5, reply.tokens.end()});
  next = joined(next, text_tokens(10, 500));
  const Reply after = reply_to(*core, saying(next, 20));
  EXPECT_LE(read_again(after), 15 + kConstant);
  EXPECT_EQ(after.tokens, cold(saying(next, 20)));
}

// Field case 8: anywhere in a long history, within the bound.
TEST(Reuse, EditsAnywhereStayWithinTheBound) {
  EngineOptions options = reuse_options();
  options.rewind_bound = 256;
  const auto core = make_tiny_core(options);
  std::vector<Token> history;
  for (int turn = 0; turn < 60; ++turn) {
    history = joined(history, text_tokens(20, 300 + turn));
    history = joined(history, reply_to(*core, saying(history, 10)).tokens);
  }
  for (int tenth = 9; tenth >= 1; --tenth) {
    const auto at = static_cast<std::ptrdiff_t>(history.size()) * tenth / 10;
    const std::vector<Token> edited =
        joined({history.begin(), history.begin() + at}, text_tokens(12, 600 + tenth));
    const Reply reply = reply_to(*core, saying(edited, 12));
    EXPECT_LE(read_again(reply), 12 + options.rewind_bound + kConstant) << tenth;
    EXPECT_EQ(reply.tokens, cold(saying(edited, 12))) << tenth;
    core->cache().check_invariants();
  }
}

// Field case 14: a prefix in use is shared, and its owner may end first.
TEST(Reuse, PrefixInUseIsShared) {
  const auto core = make_tiny_core(reuse_options());
  const std::vector<Token> stem = text_tokens(320);
  const Request a = saying(stem, 120), b = saying(joined(stem, text_tokens(10, 500)), 200);
  Reply first, second;
  bool first_ended = false, second_ended = false;
  RequestEvents events;
  events.on_finish = [&](const Reply& reply) { first = reply, first_ended = true; };
  core->submit(a, events);
  for (int i = 0; i < 12; ++i) core->step();
  const Bytes global_before = core->cache().usage().global;
  events.on_finish = [&](const Reply& reply) { second = reply, second_ended = true; };
  core->submit(b, events);
  core->step();
  // Shared rows count once: one block of its own, whatever the prompt's length.
  EXPECT_LE(core->cache().usage().global - global_before,
            2 * core->cache().layout().groups[0].block_bytes);
  while (!first_ended || !second_ended) ASSERT_TRUE(core->step());
  EXPECT_LE(read_again(second), 10 + kConstant);
  EXPECT_EQ(first.tokens, cold(a));
  EXPECT_EQ(second.tokens, cold(b));
}

// Field case 15.
TEST(Reuse, TwoBranchesOnOneStem) {
  const auto core = make_tiny_core(reuse_options());
  const std::vector<Token> stem = text_tokens(193);
  const Request branches[] = {saying(joined(stem, text_tokens(48, 500)), 4),
                              saying(joined(stem, text_tokens(48, 600)), 4)};
  for (int i = 0; i < 10; ++i) {
    const Reply reply = reply_to(*core, branches[i % 2]);
    if (i >= 2) {
      EXPECT_LE(read_again(reply), 1 + kConstant) << i;
    }
    EXPECT_EQ(reply.tokens, cold(branches[i % 2]));
  }
}

// Field case 16: the budget holds at every instant over ten conversations that do not fit together.
TEST(Reuse, BudgetHoldsOverConversationsThatTakeTurns) {
  const auto probe = make_tiny_core(reuse_options());
  const Bytes limit = 3 * probe->need(700, 1);
  const auto core = make_tiny_core(reuse_options(limit));
  std::vector<std::vector<Token>> histories(10);
  for (int turn = 0; turn < 60; ++turn) {
    std::vector<Token>& history = histories[static_cast<size_t>(turn * 7 % 10)];
    history = joined(history, text_tokens(60, 300 + turn));
    const Reply reply = reply_to(*core, saying(history, 8));
    ASSERT_EQ(reply.reason, FinishReason::length) << reply.error.message();
    history = joined(history, reply.tokens);
    core->cache().check_invariants();
    int64_t tags = 0;
    for (int tag = 0; tag < kTagCount; ++tag) tags += core->budget().used(Tag(tag)).v;
    EXPECT_EQ(tags, core->budget().used().v);
  }
  EXPECT_LE(core->budget().peak(), limit);
  EXPECT_GT(core->stats().evictions, 0u);
  EXPECT_EQ(reply_to(*core, saying(histories[3], 12)).tokens, cold(saying(histories[3], 12)));
}

// What the planner says restart points cost is what the engine keeps, to the byte.
TEST(Reuse, RestartPointsTakeWhatIsPlanned) {
  for (const int64_t bound : {int64_t{0}, int64_t{64}, int64_t{256}, int64_t{512}}) {
    EngineOptions options = reuse_options();
    options.rewind_bound = bound;
    for (const int64_t n : {int64_t{90}, kWindow + 1, int64_t{700}, int64_t{1001}}) {
      const auto core = make_tiny_core(options);
      Bytes kept;
      RequestEvents events;
      bool ended = false;
      events.on_token = [&](const TokenEvent&) { kept = core->budget().used(Tag::restart); };
      events.on_finish = [&](const Reply&) { ended = true; };
      core->submit(saying(text_tokens(n), 1), std::move(events));
      while (!ended) ASSERT_TRUE(core->step());
      EXPECT_EQ(kept, plan_rewind(core->cache().layout(), n, bound).bytes)
          << n << " tokens, bound " << bound;
    }
  }
}

// --- twelve conversations in a budget of four ---------------------------------------------------

struct Turn {
  std::vector<Token> prompt, reply;
};

// Twelve conversations that take turns, some more often than others or each as often; each starts
// over when it is long. `say` gives the reply to a prompt.
enum class Order { random, round };
template <typename Say>
void take_turns(Order order, Say say) {
  const std::vector<Token> system = text_tokens(160);
  std::vector<std::vector<Token>> histories(12, system);
  uint32_t random = 7;
  for (uint32_t turn = 0; turn < 200; ++turn) {
    random = random * 1664525u + 1013904223u;
    const uint32_t a = (random >> 8) % 12, b = (random >> 20) % 12;
    std::vector<Token>& history = histories[order == Order::round ? turn % 12 : std::min(a, b)];
    if (history.size() > 640) history = system;
    history = joined(history, text_tokens(40, 300 + static_cast<Token>(random % 400)));
    history = joined(history, say(history));
  }
}

// What an engine would read that keeps every block until it is the least recently used one.
class BlockLru {
 public:
  BlockLru(const KvLayout& layout, Bytes limit) : layout_(layout), limit_(limit) {}

  // Tokens of the prompt that are read; then prompt and reply are stored.
  int64_t read(const std::vector<Token>& prompt, const std::vector<Token>& reply) {
    const std::vector<size_t> names = names_of(joined(prompt, reply));
    const int64_t n = std::ssize(prompt), last = (n - 1) / kBlock;
    int64_t hit = 0;
    for (int64_t p = 1; p <= last && has(0, names[static_cast<size_t>(p - 1)]); ++p) {
      if (has_window(names, p)) hit = p;
    }
    // Recent blocks last, those at the end of the text first to go.
    for (size_t g = 0; g < layout_.groups.size(); ++g)
      for (size_t i = names.size(); i-- > 0;) use(g, names[i]);
    while (bytes_ > limit_) drop_oldest();
    return n - hit * kBlock;
  }

 private:
  using Key = std::pair<size_t, size_t>;  // group, name

  static std::vector<size_t> names_of(const std::vector<Token>& tokens) {
    std::vector<size_t> names;
    size_t name = 17;
    for (size_t i = 0; i + kBlock <= tokens.size(); i += kBlock) {
      for (size_t j = i; j < i + kBlock; ++j)
        name = name * 1'000'003 + static_cast<size_t>(tokens[j]);
      names.push_back(name);
    }
    return names;
  }
  bool has(size_t group, size_t name) const { return blocks_.contains({group, name}); }
  bool has_window(const std::vector<size_t>& names, int64_t p) const {
    for (size_t g = 1; g < layout_.groups.size(); ++g) {
      for (int64_t b = first_needed_block(layout_.groups[g].retention, p * kBlock, kBlock); b < p;
           ++b)
        if (!has(g, names[static_cast<size_t>(b)])) return false;
    }
    return true;
  }
  void use(size_t group, size_t name) {
    const Key key{group, name};
    if (const auto found = blocks_.find(key); found != blocks_.end()) {
      order_.erase(found->second);
    } else {
      bytes_ += layout_.groups[group].block_bytes;
    }
    blocks_[key] = order_.insert(order_.end(), key);
  }
  void drop_oldest() {
    bytes_ -= layout_.groups[order_.front().first].block_bytes;
    blocks_.erase(order_.front());
    order_.pop_front();
  }

  const KvLayout& layout_;
  Bytes limit_, bytes_;
  std::list<Key> order_;
  std::map<Key, std::list<Key>::iterator> blocks_;
};

class Turns : public testing::TestWithParam<Order> {};
INSTANTIATE_TEST_SUITE_P(Reuse, Turns, testing::Values(Order::random, Order::round));

// The budget holds; every token that is read again is explained; and fewer are than if the least
// recently used block gave way, by replaying the same turns.
TEST_P(Turns, TwelveConversationsInABudgetOfFour) {
  const Bytes limit = 4 * make_tiny_core(reuse_options())->need(700, 1);
  const auto core = make_tiny_core(reuse_options(limit));
  std::vector<Turn> turns;
  int64_t read = 0;
  take_turns(GetParam(), [&](const std::vector<Token>& prompt) {
    const uint64_t lost_before = lost_tokens(core->stats());
    const Reply reply = reply_to(*core, saying(prompt, 6));
    EXPECT_EQ(reply.reason, FinishReason::length) << reply.error.message();
    const auto lost = static_cast<int64_t>(lost_tokens(core->stats()) - lost_before);
    // New ones, the last of the reply before, and the rest of two blocks.
    if (!turns.empty()) {
      EXPECT_LE(read_again(reply) - lost, 40 + 1 + 2 * kConstant) << turns.size();
    }
    read += read_again(reply);
    turns.push_back({prompt, reply.tokens});
    core->cache().check_invariants();
    return reply.tokens;
  });
  EXPECT_LE(core->budget().peak(), limit);
  EXPECT_GT(lost_tokens(core->stats()), 0u);

  BlockLru by_block(core->cache().layout(), limit);
  int64_t read_by_block = 0;
  for (const Turn& turn : turns) read_by_block += by_block.read(turn.prompt, turn.reply);
  std::printf("prompt tokens read: %ld; by least recently used block: %ld\n",
              static_cast<long>(read), static_cast<long>(read_by_block));
  EXPECT_LT(read, read_by_block);
}

// Field case 26.
TEST(Reuse, LeastRecentlyUsedMeansUsed) {
  const auto probe = make_tiny_core(reuse_options());
  // Room for three idle conversations and the one that runs.
  const auto core = make_tiny_core(reuse_options(4 * probe->need(420, 1)));
  const auto say = [&](Token first) { return reply_to(*core, saying(text_tokens(400, first), 2)); };
  say(300), say(400), say(500);
  EXPECT_LE(read_again(say(300)), kConstant);  // A is used
  for (const Token more : {600, 650}) say(more);
  const int64_t a = read_again(say(300));
  EXPECT_LE(a, kConstant);
  EXPECT_GT(core->stats().evictions, 0u);
}

// Given up before anything was computed: who was there stays as it was, and nobody else comes.
TEST(Reuse, ARequestThatNeverRanLeavesNoTraceOfItsName) {
  const auto core = make_tiny_core(reuse_options());
  Request request = saying(text_tokens(300), 4);
  request.conversation_name = "chat";
  reply_to(*core, request);
  const int64_t tokens = core->conversations().inspect(0, "chat")->tokens;
  request.prompt = text_tokens(200, 700);
  for (const char* name : {"chat", "other"}) {
    request.conversation_name = name;
    core->cancel(core->submit(request, {}));
    EXPECT_EQ(core->conversations().inspect(0, name)->running, 1);
    while (core->step()) {
    }
  }
  EXPECT_EQ(core->conversations().inspect(0, "chat")->tokens, tokens);
  EXPECT_EQ(core->conversations().inspect(0, "chat")->running, 0);
  EXPECT_EQ(core->conversations().inspect(0, "other").status().code(), Code::not_found);
}

// One tenant never finds, or counts, what another has read.
TEST(Reuse, TenantsDoNotShare) {
  EngineOptions options = reuse_options();
  options.tenants = {{.name = "a", .floor = {}, .ceiling = {}},
                     {.name = "b", .floor = {}, .ceiling = {}}};
  const auto core = make_tiny_core(options);
  Request request = saying(text_tokens(300), 4);
  request.conversation_name = "chat";
  reply_to(*core, request);
  EXPECT_LE(read_again(reply_to(*core, request)), kConstant);
  request.tenant = 1;
  EXPECT_EQ(reply_to(*core, request).usage.cached_tokens, 0);
  EXPECT_EQ(core->conversations().list(0).size(), 1u);
  EXPECT_TRUE(core->conversations().remove(1, "chat").ok());
  EXPECT_EQ(core->conversations().inspect(1, "chat").status().code(), Code::not_found);
  request.tenant = 0;
  EXPECT_LE(read_again(reply_to(*core, request)), kConstant);
}

// Nor does a tenant's request wait for another's that reads the same.
TEST(Reuse, TenantsThatComeAtOnceReadEachTheirOwn) {
  EngineOptions options = reuse_options();
  options.tenants.resize(2);
  const auto core = make_tiny_core(options);
  Request request = saying(text_tokens(300), 4);
  std::optional<Reply> replies[2];
  for (const uint32_t tenant : {0u, 1u}) {
    request.tenant = tenant;
    submit_to(*core, request, replies[tenant]);
  }
  core->step();
  EXPECT_EQ(core->stats().running, 2);
  while (core->step()) {
  }
  for (const auto& reply : replies) {
    EXPECT_EQ(reply->usage.cached_tokens, 0);
    EXPECT_EQ(reply->timings.prefill_tokens, 300);
  }
  EXPECT_EQ(replies[0]->tokens, replies[1]->tokens);
}

TEST(Reuse, NamedConversations) {
  const auto core = make_tiny_core(reuse_options());
  Conversations& named = core->conversations();
  Request request = saying(text_tokens(500), 30);
  request.conversation_name = "chat";
  const Reply reply = reply_to(*core, request);
  const ConversationInfo info = *named.inspect(0, "chat");
  EXPECT_EQ(info.tokens, reply.kv_tokens);
  EXPECT_GE(info.in_kv, info.tokens - kConstant);
  EXPECT_GT(info.unique.v, 0);
  EXPECT_FALSE(info.restart_points.empty());

  EXPECT_TRUE(named.fork(0, "chat", "branch").ok());
  EXPECT_EQ(named.fork(0, "chat", "branch").code(), Code::invalid_input);
  // Two names of the same KV: dropping either frees nothing.
  EXPECT_EQ(named.inspect(0, "chat")->unique.v, 0);
  EXPECT_EQ(named.inspect(0, "branch")->unique.v, 0);
  EXPECT_EQ(named.inspect(0, "chat")->shared, info.unique + info.shared);
  EXPECT_TRUE(named.pin(0, "branch").ok());
  EXPECT_TRUE(named.inspect(0, "branch")->is_pinned);
  EXPECT_EQ(*named.checkpoint(0, "chat"), info.in_kv);
  EXPECT_EQ(named.rewind(0, "chat", 10'000).code(), Code::invalid_input);
  EXPECT_TRUE(named.rewind(0, "chat", 100).ok());
  EXPECT_EQ(named.inspect(0, "chat")->tokens, 100);
  // The branch keeps what the rewound one gave up.
  EXPECT_GE(named.inspect(0, "branch")->in_kv, info.tokens - kConstant);
  EXPECT_TRUE(named.remove(0, "chat").ok());
  EXPECT_TRUE(named.remove(0, "branch").ok());
  EXPECT_EQ(named.remove(0, "branch").code(), Code::not_found);
  core->cache().check_invariants();
  EXPECT_EQ(core->cache().usage().global.v + core->cache().usage().local.v, 0);
}

// What a name is said to keep alone is what forgetting it frees, in whatever order they go.
TEST(Reuse, RemovingANameFreesWhatItKeepsAlone) {
  const auto core = make_tiny_core(reuse_options());
  Conversations& named = core->conversations();
  const std::vector<Token> stem = text_tokens(300);
  int name = 0;
  for (const int64_t n : {0, 40, 40, 200}) {
    Request request = saying(joined(stem, text_tokens(n, 500 + 20 * name)), 30);
    request.conversation_name = std::to_string(name++);
    reply_to(*core, request);
  }
  EXPECT_TRUE(named.fork(0, "3", "fork").ok());
  EXPECT_TRUE(named.fork(0, "1", "rewound").ok());
  EXPECT_TRUE(named.rewind(0, "rewound", 160).ok());
  int64_t freed_in_all = 0;
  for (const std::string gone : {"1", "3", "0", "fork", "rewound", "2"}) {
    const ConversationInfo info = *named.inspect(0, gone);
    for (const ConversationInfo& listed : named.list(0)) {
      if (listed.name == gone) {
        EXPECT_EQ(listed.unique, info.unique) << gone;
      }
    }
    const Bytes before = core->cache().bytes_of(NamespaceId{});
    EXPECT_TRUE(named.remove(0, gone).ok());
    const Bytes freed = before - core->cache().bytes_of(NamespaceId{});
    EXPECT_EQ(freed, info.unique) << gone;
    freed_in_all += freed.v;
    core->cache().check_invariants();
  }
  EXPECT_GT(freed_in_all, 0);
  EXPECT_EQ(core->cache().bytes_of(NamespaceId{}).v, 0);
}

// A prompt arrives while replies run: with a gap asked for, it is read in small pieces.
TEST(Reuse, LongPromptIsReadInPiecesBesideReplies) {
  EngineOptions options = reuse_options();
  options.max_gap = std::chrono::milliseconds(1);  // less than any step takes: smallest pieces
  const auto core = make_tiny_core(options);
  int64_t said = 0, said_before_end = -1;
  RequestEvents running;
  running.on_token = [&](const TokenEvent&) { ++said; };
  core->submit(saying(text_tokens(20), 400), running);
  for (int i = 0; i < 60; ++i) core->step();
  RequestEvents arriving;
  bool ended = false;
  arriving.on_finish = [&](const Reply&) { said_before_end = said, ended = true; };
  const int64_t before = said;
  core->submit(saying(text_tokens(1000, 400), 1), arriving);
  while (!ended) ASSERT_TRUE(core->step());
  EXPECT_GE(said_before_end - before, 1000 / 64);
}

// A short prompt does not wait until a long one that came before it is read.
TEST(Reuse, ShortPromptOvertakesALongOne) {
  EngineOptions options = reuse_options();
  options.step_tokens = 64;
  const auto core = make_tiny_core(options);
  std::vector<int> order;
  const auto submit = [&](int id, int64_t n, Token first) {
    RequestEvents events;
    events.on_finish = [&order, id](const Reply&) { order.push_back(id); };
    core->submit(saying(text_tokens(n, first), 2), std::move(events));
  };
  submit(1, 1500, 300);
  core->step();
  submit(2, 40, 500);
  while (order.size() < 2) ASSERT_TRUE(core->step());
  EXPECT_EQ(order, (std::vector<int>{2, 1}));
}

TEST(Reuse, LoweringTheBudgetEvictsAndNeverKills) {
  const auto core = make_tiny_core(reuse_options());
  for (int i = 0; i < 8; ++i) reply_to(*core, saying(text_tokens(400, 300 + 40 * i), 2));
  const Bytes used = core->budget().used();
  EXPECT_TRUE(core->set_budget(core->need(600, 1)).ok());
  EXPECT_LE(core->budget().used(), core->need(600, 1));
  EXPECT_LT(core->budget().used(), used);
  core->cache().check_invariants();
  EXPECT_EQ(reply_to(*core, saying(text_tokens(400), 2)).reason, FinishReason::length);
  EXPECT_EQ(reply_to(*core, saying(text_tokens(1500), 2)).error.code(), Code::over_budget);
}

}  // namespace
}  // namespace weir

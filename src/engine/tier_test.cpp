// The engine over a tier: what comes back is not read again, and whatever the tier does, the reply
// is the same.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/testing/prompts.h"
#include "kv/testing/memory_tier.h"
#include "model/fingerprint.h"

namespace weir {
namespace {

// Room for one conversation of text_tokens(500) and little more.
EngineOptions tier_options(MemoryTier& tier) {
  EngineOptions options = reuse_options();
  options.tier = &tier;
  options.tier_model = "weir-tiny f16";
  options.tier_wait = std::chrono::milliseconds(200);
  options.kv_budget = make_tiny_core(reuse_options())->need(540, 1) + Bytes{96 * kKiB};
  options.tier_ready = options.kv_budget;
  return options;
}

const Request& question() {
  static const Request request = saying(text_tokens(500), 8);
  return request;
}
const std::vector<Token>& answer() {
  static const std::vector<Token> tokens = cold(question());
  return tokens;
}

void write_all(EngineCore& core) {
  while (core.tend_tier()) {
  }
}

// Leaves question() in the tier alone.
std::unique_ptr<EngineCore> core_that_has_demoted(const EngineOptions& options) {
  auto core = make_tiny_core(options);
  EXPECT_EQ(reply_to(*core, question()).tokens, answer());
  write_all(*core);
  reply_to(*core, saying(text_tokens(500, 600), 8));
  write_all(*core);
  EXPECT_LT(core->cache().match(NamespaceId{0}, question().prompt).first_computed(), 400);
  return core;
}

void expect_baseline(EngineCore& core) {
  write_all(core);
  core.cache().check_invariants();
  for (const Tag tag : {Tag::staging_in, Tag::staging_out, Tag::live_global, Tag::live_local})
    EXPECT_EQ(core.budget().used(tag).v, 0) << tag_name(tag);
}

TEST(EngineTier, WhatComesBackIsNotReadAgain) {
  MemoryTier tier(1);
  tier.set_delay(3);
  const auto core = core_that_has_demoted(tier_options(tier));
  const Reply back = reply_to(*core, question());
  EXPECT_EQ(back.tokens, answer());
  EXPECT_LE(read_again(back), 16 + 1);
  EXPECT_EQ(back.timings.prefill_tokens, read_again(back));
  const EngineStats stats = core->stats();
  EXPECT_TRUE(stats.has_tier);
  EXPECT_EQ(stats.tier_traffic.hits, 1u);
  EXPECT_GT(stats.tier_traffic.read.v, 0);
  EXPECT_GT(stats.tier.records, 0);
  EXPECT_LE(stats.kv_peak, stats.kv_limit);
  expect_baseline(*core);
}

TEST(EngineTier, ATierThatDoesNotAnswerIsWaitedForNoLongerThanAllowed) {
  MemoryTier tier(1);
  EngineOptions options = tier_options(tier);
  options.tier_wait = std::chrono::milliseconds(20);
  const auto core = core_that_has_demoted(options);
  tier.hold(true);
  const auto start = std::chrono::steady_clock::now();
  std::optional<Reply> reply;
  submit_to(*core, question(), reply);
  core->step();
  EXPECT_TRUE(core->is_waiting_for_tier());
  while (!reply) core->step();
  EXPECT_GE(std::chrono::steady_clock::now() - start, options.tier_wait);
  EXPECT_EQ(reply->tokens, answer());
  EXPECT_EQ(core->stats().tier_traffic.misses[static_cast<size_t>(TierMiss::cancelled)], 1u);
  tier.hold(false);
  expect_baseline(*core);
}

TEST(EngineTier, ATierThatLiesCostsTimeAndNothingElse) {
  for (const TierFault fault : {TierFault::flip, TierFault::swap, TierFault::cut,
                                TierFault::foreign, TierFault::fail, TierFault::boast}) {
    SCOPED_TRACE(static_cast<int>(fault));
    MemoryTier tier(1);
    const auto core = core_that_has_demoted(tier_options(tier));
    tier.set_fault(fault, 100);
    const Reply reply = reply_to(*core, question());
    EXPECT_EQ(reply.tokens, answer());
    if (fault == TierFault::flip) {
      const auto& lost = core->stats().lost_tokens;
      EXPECT_GT(lost[static_cast<size_t>(MissReason::load_failed)], 0u);
    }
    tier.end_faults();
    expect_baseline(*core);
  }
}

// Others (here one too short to be in a tier) pass while one waits; and whoever leaves while it
// waits leaves nothing behind.
TEST(EngineTier, WhoWaitsForTheTierKeepsNobodyElse) {
  MemoryTier tier(1);
  const auto core = core_that_has_demoted(tier_options(tier));
  tier.hold(true);
  std::optional<Reply> waits, passes;
  const RequestId id = submit_to(*core, question(), waits);
  submit_to(*core, saying(text_tokens(10, 700), 2), passes);
  while (!passes) core->step();
  EXPECT_FALSE(waits.has_value());
  core->cancel(id);
  while (!waits) core->step();
  EXPECT_EQ(waits->reason, FinishReason::cancelled);
  tier.hold(false);
  expect_baseline(*core);
}

// With its thread, which looks after the tier while nobody asks.
TEST(EngineTier, AnIdleEngineWritesAhead) {
  MemoryTier tier(1);
  EngineOptions options = tier_options(tier);
  {
    const auto engine = *Engine::create(tiny_model(), cpu_device(), options);
    EXPECT_EQ(engine->run(question()).tokens, answer());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    uint64_t written = 0;
    for (uint64_t before = 1; written != before || written == 0;) {
      before = written;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      written = engine->stats().tier_traffic.written_records;
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    }
  }
  const auto core = make_tiny_core(options);
  const Reply back = reply_to(*core, question());
  EXPECT_EQ(back.tokens, answer());
  EXPECT_LE(read_again(back), 16 + 1);
}

TEST(EngineTier, TenantsFindTheirOwnAlone) {
  MemoryTier tier(1);
  EngineOptions options = tier_options(tier);
  options.tenants = {{}, {.name = "alice", .floor = {}, .ceiling = {}}};
  const auto core = core_that_has_demoted(options);
  Request other = question();
  other.tenant = 1;
  const Reply reply = reply_to(*core, other);
  EXPECT_EQ(reply.tokens, answer());
  EXPECT_EQ(reply.usage.cached_tokens, 0);
}

TEST(EngineTier, AModelWithoutANameIsRefused) {
  MemoryTier tier(1);
  EngineOptions options = tier_options(tier);
  options.tier_model.clear();
  EXPECT_EQ(EngineCore::create(tiny_model(), cpu_device(), options).status().code(),
            Code::invalid_input);
}

TEST(EngineTier, AModelIsNamedByItsBytesAndByWhatChangesRows) {
  const std::string tiny = WEIR_SOURCE_DIR "/models/weir-tiny/weir-tiny-";
  const auto name = [](const std::string& path, const ModelOptions& options) {
    const Result<std::string> made = model_fingerprint(path, options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? *made : "";
  };
  const std::string f16 = name(tiny + "f16.gguf", {});
  EXPECT_EQ(name(tiny + "f16.gguf", {}), f16);
  EXPECT_NE(name(tiny + "q8_0.gguf", {}), f16);
  EXPECT_NE(name(tiny + "f16.gguf", {.exact = true}), f16);
  EXPECT_NE(name(tiny + "f16.gguf", {.context = 1 << 20}), f16);
  EXPECT_EQ(model_fingerprint(tiny + "none.gguf", {}).status().code(), Code::not_found);
}

}  // namespace
}  // namespace weir

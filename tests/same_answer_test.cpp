// The same greedy reply whatever way a request comes to it: cold, warm, rewound, branched, healed,
// after its KV was evicted, from a tier, alone and with neighbours, with 1, 2 and 7 threads.
#include <gtest/gtest.h>

#include "engine/engine_core.h"
#include "kv/testing/memory_tier.h"
#include "model/testing/small_model.h"
#include "model_logits.h"

namespace weir {
namespace {

using testing::small_facts;
using testing::small_model;
using testing::TemporaryFolder;

struct Case {
  const Model& model;
  int n_threads;
};

std::unique_ptr<EngineCore> engine(const Case& c, KvDevice& device, EngineOptions options = {}) {
  options.kv = KvFormat::uniform(KvType::f16, 16);
  if (options.kv_budget.v == 0) options.kv_budget = {256 * kMiB};
  options.n_threads = c.n_threads;
  options.step_tokens = 96;
  Result<std::unique_ptr<EngineCore>> core = EngineCore::create(c.model, device, options);
  EXPECT_TRUE(core.ok()) << core.status().message();
  return std::move(*core);
}

Request asking(std::vector<Token> prompt, int64_t n_new) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = n_new;
  request.sampling.temperature = 0;
  request.ignore_end = true;
  return request;
}

Reply reply_to(EngineCore& core, const Request& request) {
  Reply result;
  bool is_finished = false;
  RequestEvents events;
  events.on_finish = [&](const Reply& reply) { result = reply, is_finished = true; };
  core.submit(request, std::move(events));
  while (!is_finished) EXPECT_TRUE(core.step());
  EXPECT_EQ(result.reason, FinishReason::length) << result.error.message();
  return result;
}

std::vector<Token> joined(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

constexpr int64_t kReply = 12;

// Every way to `prompt`, whose first `stem` tokens another conversation has in common with it.
void check_all_ways(const Case& c, const std::vector<Token>& prompt, size_t stem) {
  const std::unique_ptr<KvDevice> device = make_cpu_device();
  EngineOptions cold_options;
  cold_options.reuse = false;
  const Request request = asking(prompt, kReply);
  const std::vector<Token> cold = reply_to(*engine(c, *device, cold_options), request).tokens;
  const std::vector<Token> start(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(stem));
  const std::vector<Token> other = joined(start, random_tokens(90, c.model.n_vocab(), 3));

  {
    SCOPED_TRACE("warm, twice; then another branch and back");
    const auto core = engine(c, *device);
    EXPECT_EQ(reply_to(*core, request).tokens, cold);
    const Reply warm = reply_to(*core, request);
    EXPECT_EQ(warm.tokens, cold);
    EXPECT_GT(warm.usage.cached_tokens, 0);
    reply_to(*core, asking(other, 40));
    EXPECT_EQ(reply_to(*core, request).tokens, cold);
    core->cache().check_invariants();
  }
  {
    SCOPED_TRACE("on from a restart point of another conversation");
    EngineOptions options;
    options.rewind_bound = 32;
    const auto core = engine(c, *device, options);
    reply_to(*core, asking(other, 40));
    const Reply rewound = reply_to(*core, request);
    EXPECT_EQ(rewound.tokens, cold);
    EXPECT_GE(rewound.usage.cached_tokens, static_cast<int64_t>(stem) - 32 - 16);
  }
  {
    SCOPED_TRACE("healed: no restart point, the windows computed again");
    EngineOptions options;
    options.rewind_bound = 0;
    const auto core = engine(c, *device, options);
    reply_to(*core, asking(other, 40));
    EXPECT_EQ(reply_to(*core, request).tokens, cold);
    EXPECT_GT(core->stats().healed_tokens, 0u);
    core->cache().check_invariants();
  }
  {
    SCOPED_TRACE("evicted in between");
    EngineOptions options;
    const int64_t n = std::ssize(prompt) + kReply;
    options.kv_budget = engine(c, *device)->need(n, 1);
    const auto core = engine(c, *device, options);
    reply_to(*core, request);
    reply_to(*core, asking(random_tokens(prompt.size(), c.model.n_vocab(), 9), kReply));
    EXPECT_GT(core->stats().evictions, 0u);
    EXPECT_EQ(reply_to(*core, request).tokens, cold);
  }
  {
    SCOPED_TRACE("written to a tier, evicted and brought back; then in another process");
    MemoryTier tier(1);
    tier.set_delay(3);
    EngineOptions options;
    options.tier = &tier;
    options.tier_model = "model";
    options.tier_ready = {256 * kMiB};
    for (const bool is_restarted : {false, true}) {
      const auto core = engine(c, *device, options);
      if (!is_restarted) {
        EXPECT_EQ(reply_to(*core, request).tokens, cold);
        while (core->tend_tier()) {
        }
        const Bytes limit = core->budget().limit();
        ASSERT_TRUE(core->set_budget(core->need(1, 1)).ok());
        ASSERT_TRUE(core->set_budget(limit).ok());
        EXPECT_LE(core->cache().evictable(), core->need(1, 1));
      }
      const Reply back = reply_to(*core, request);
      EXPECT_EQ(back.tokens, cold);
      EXPECT_GE(back.usage.cached_tokens, std::ssize(prompt) - 1 - 16);
      EXPECT_EQ(core->stats().tier_traffic.hits, 1u);
      core->cache().check_invariants();
    }
  }
  {
    SCOPED_TRACE("with neighbours that come and go");
    const auto core = engine(c, *device);
    int ended = 0;
    std::vector<Token> tokens;
    for (int i = 0; i < 5; ++i) {
      RequestEvents events;
      const bool is_it = i == 2;
      events.on_finish = [&, is_it](const Reply& reply) {
        ++ended;
        if (is_it) tokens = reply.tokens;
      };
      const auto length = static_cast<size_t>(20 + 31 * i);
      core->submit(
          is_it ? request
                : asking(random_tokens(length, c.model.n_vocab(), 20 + static_cast<uint32_t>(i)),
                         5 + 4 * i),
          std::move(events));
      core->step();
    }
    while (ended < 5) ASSERT_TRUE(core->step());
    EXPECT_EQ(tokens, cold);
  }
}

// A context so short that pools take memory in small pieces, and a small budget means something.
ModelFacts short_facts() {
  ModelFacts facts = small_facts();
  facts.max_context = 1024;
  return facts;
}

std::unique_ptr<Model> load(const std::string& path, bool exact) {
  Result<std::unique_ptr<Model>> model = Model::load(path, {.exact = exact});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(*model);
}

// Window 16, six local layers: healed from about 96 tokens back.
TEST(SameAnswer, SyntheticModels) {
  const TemporaryFolder folder;
  for (const std::string type : {"f32", "q8_0"}) {
    SCOPED_TRACE(type);
    const std::unique_ptr<Model> model = load(small_model(folder, type, short_facts()), true);
    check_all_ways({*model, 1}, random_tokens(250, model->n_vocab(), 5), 200);
  }
}

// More threads than most machines that run the tests have cores, whose barriers spin: few tokens.
TEST(SameAnswer, AnyNumberOfThreads) {
  const TemporaryFolder folder;
  const std::unique_ptr<Model> model = load(small_model(folder, "f32", short_facts()), true);
  const std::unique_ptr<KvDevice> device = make_cpu_device();
  const Request request = asking(random_tokens(100, model->n_vocab(), 5), 3);
  const std::vector<Token> one = reply_to(*engine({*model, 1}, *device), request).tokens;
  for (const int n_threads : {2, 7}) {
    const auto core = engine({*model, n_threads}, *device);
    EXPECT_EQ(reply_to(*core, request).tokens, one) << n_threads;
    EXPECT_EQ(reply_to(*core, request).tokens, one) << n_threads << ", warm";
  }
}

TEST(SameAnswer, WeirTiny) {
  const std::string path = std::string(WEIR_SOURCE_DIR) + "/models/weir-tiny/weir-tiny-q8_0.gguf";
  const std::unique_ptr<Model> model = load(path, false);
  check_all_ways({*model, 1}, random_tokens(1700, model->n_vocab(), 5), 1650);
}

}  // namespace
}  // namespace weir

// Rebuilding lost local rows in a real graph: the bits of keys, values and logits are those of a
// run that lost nothing, from the start that geometry/replay.h gives, and others from one block
// later.
#include <gtest/gtest.h>

#include <cstring>

#include "geometry/replay.h"
#include "model/testing/small_model.h"
#include "model_logits.h"

namespace weir {
namespace {

using testing::small_model;
using testing::TemporaryFolder;

constexpr int64_t kBoundary = 224, kPrompt = 240;  // where it restarts, and what is read

// A KV store and an executor for one model.
struct Session {
  Session(const Model& m, KvType type) : model(m), executor(m, *device, 1) {
    const KvFormat format = KvFormat::uniform(type, 16);
    cache = *KvCache::create(*make_layout(m.geometry(), format), budget, device->memory(),
                             {.address_space = {64 * kMiB}, .poison = true});
  }

  // Reads tokens up to `end` in steps of at most `chunk`; returns the logits of all of them.
  std::vector<float> read(SeqId seq, std::span<const int32_t> tokens, int64_t end, int64_t chunk) {
    std::vector<float> all;
    for (int64_t at = cache->length(seq); at < end; at = cache->length(seq)) {
      const int64_t n = std::min(chunk, end - at);
      const auto next = tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(n));
      Result<Step> step = cache->plan_step({{{.seq = seq, .n_tokens = n, .tokens = next}}});
      WEIR_CHECK(step.ok());
      std::vector<int32_t> rows;
      for (int32_t i = 0; i < n; ++i) rows.push_back(i);
      std::vector<float> logits(static_cast<size_t>(n * model.n_vocab()));
      const std::vector<int64_t> positions = step->positions(0);
      const StepInput input{.tokens = next, .positions = positions, .output_rows = rows};
      WEIR_CHECK(executor.compute(input, cache->layout(), *step, logits).ok());
      step->commit();
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

  // What the local groups hold, bit by bit.
  std::vector<std::byte> local_bytes(SeqId seq) const {
    std::vector<std::byte> bytes;
    for (const KvGroup& g : cache->layout().groups) {
      if (!cache->layout().is_local(g)) continue;
      for (const BlockAddress& b : cache->held_table(seq, static_cast<size_t>(g.id)).blocks) {
        bytes.insert(bytes.end(), b.memory, b.memory + g.block_bytes.v);
      }
    }
    return bytes;
  }

  const Model& model;
  std::unique_ptr<KvDevice> device = make_cpu_device();
  Budget budget{Bytes{64 * kMiB}};
  std::unique_ptr<KvCache> cache;
  Executor executor;
};

// What a run gives that computes everything, and what is left of it without a restart point.
struct Cold {
  Cold(Session& session, std::span<const int32_t> tokens) {
    const SeqId seq = session.cache->create_sequence(NamespaceId{0});
    session.read(seq, tokens, kBoundary, 32);
    local = session.local_bytes(seq);
    logits = session.read(seq, tokens, kPrompt, 32);
    session.cache->release(seq);
  }
  std::vector<std::byte> local;
  std::vector<float> logits;  // from the boundary on
};

bool are_same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct HealTest : ::testing::TestWithParam<std::pair<const char*, KvType>> {
  void SetUp() override {
    model = *Model::load(small_model(folder, GetParam().first), {.exact = true});
    tokens = random_tokens(kPrompt + 1, model->n_vocab(), 5);
  }
  TemporaryFolder folder;
  std::unique_ptr<Model> model;
  std::vector<int32_t> tokens;
};

TEST_P(HealTest, TheFormulasStartGivesTheSameBits) {
  for (const int64_t chunk : {1, 7, 48}) {
    Session session(*model, GetParam().second);
    const Cold cold(session, tokens);
    const auto prompt = std::span<const int32_t>(tokens).first(kBoundary + 1);
    const PrefixMatch match = session.cache->match(NamespaceId{0}, prompt);
    ASSERT_EQ(match.tokens, kBoundary);
    // Six local layers of window 16: five widen what the last 15 rows, in one block, depend on.
    ASSERT_EQ(match.first_computed(), (kBoundary - 16 - 5 * 15) / 16 * 16);
    const SeqId seq = *session.cache->resume(NamespaceId{0}, prompt, match);
    session.read(seq, tokens, kBoundary, chunk);
    session.cache->check_invariants();
    EXPECT_EQ(session.local_bytes(seq), cold.local) << chunk;
    EXPECT_TRUE(are_same(session.read(seq, tokens, kPrompt, chunk), cold.logits)) << chunk;
  }
}

TEST_P(HealTest, ABlockLaterGivesOthers) {
  Session session(*model, GetParam().second);
  const Cold cold(session, tokens);
  const auto prompt = std::span<const int32_t>(tokens).first(kBoundary + 1);
  PrefixMatch match = session.cache->match(NamespaceId{0}, prompt);
  match.heal_tokens -= 16;
  const SeqId seq = *session.cache->resume(NamespaceId{0}, prompt, match);
  session.read(seq, tokens, kBoundary, 48);
  EXPECT_NE(session.local_bytes(seq), cold.local);
  EXPECT_FALSE(are_same(session.read(seq, tokens, kPrompt, 48), cold.logits));
}

// A restart point gives the same bits without reading anything again.
TEST_P(HealTest, ARestartPointGivesTheSameBits) {
  Session session(*model, GetParam().second);
  const SeqId first = session.cache->create_sequence(NamespaceId{0});
  session.read(first, tokens, kBoundary, 32);
  ASSERT_TRUE(session.cache->mark_restart(first, RestartKind::end_of_prompt));
  const std::vector<float> logits = session.read(first, tokens, kPrompt, 32);
  session.cache->release(first);
  const PrefixMatch match = session.cache->match(NamespaceId{0}, tokens);
  ASSERT_EQ(match.first_computed(), kBoundary);
  const SeqId seq = *session.cache->resume(NamespaceId{0}, tokens, match);
  EXPECT_TRUE(are_same(session.read(seq, tokens, kPrompt, 3), logits));
}

INSTANTIATE_TEST_SUITE_P(Types, HealTest,
                         ::testing::Values(std::pair{"f32", KvType::f32},
                                           std::pair{"bf16", KvType::f16}));

}  // namespace
}  // namespace weir

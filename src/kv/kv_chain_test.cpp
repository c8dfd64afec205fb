// Idle chains: what gives way, in which order and in which units; pins, quotas, thinning, accounts.
#include <gtest/gtest.h>

#include <functional>

#include "kv/eviction_policy.h"
#include "kv/testing/prefix_store.h"

namespace weir {
namespace {

constexpr int kB = 4;

struct Evictions final : KvObserver {
  std::vector<EvictionCandidate> gone;
  void on_evicted(const EvictionCandidate& unit) override { gone.push_back(unit); }
};

using Kind = EvictionCandidate::Kind;

constexpr Bytes kBlock{4096};  // of every group, and an extent

struct ChainTest : testing::Test {
  void make(std::vector<Retention> groups, int64_t limit = int64_t{1} << 22) {
    store = std::make_unique<PrefixStore>(fingerprint_layout(kB, groups, 2, 16), limit, 0);
    for (const KvGroup& g : store->cache->layout().groups) ASSERT_EQ(g.block_bytes, kBlock);
    store->cache->add_observer(&evictions);
  }
  // Lowers the limit until something goes, `times` times.
  void squeeze(size_t times) {
    const Bytes limit = store->budget.limit();
    const size_t before = evictions.gone.size();
    while (evictions.gone.size() < before + times && store->cache->evictable().v > 0) {
      store->budget.set_limit({store->budget.used().v - 1});
      store->cache->fit_to_budget();
      store->cache->check_invariants();
    }
    store->budget.set_limit(limit);
  }
  int64_t known(const Tokens& tokens) const {
    return store->cache->bytes_of(PrefixStore::kDefault, tokens).tokens;
  }
  std::vector<int64_t> points(const Tokens& tokens) const {
    std::vector<int64_t> all;
    for (const auto& p : store->cache->bytes_of(PrefixStore::kDefault, tokens).points) {
      all.push_back(p.tokens);
    }
    return all;
  }
  std::unique_ptr<PrefixStore> store;
  Evictions evictions;
};

TEST_F(ChainTest, AChainGoesFromItsEndAndKeepsItsBeginning) {
  make({kGlobal});
  const Tokens a = tokens_from(0, 64);
  store->keep(a);
  squeeze(5);
  ASSERT_FALSE(evictions.gone.empty());
  for (const EvictionCandidate& unit : evictions.gone) EXPECT_EQ(unit.kind, Kind::tail);
  EXPECT_EQ(known(a), 64 - kB * static_cast<int64_t>(evictions.gone.size()));
  EXPECT_EQ(store->cache->match(PrefixStore::kDefault, a).tokens, known(a));
}

TEST_F(ChainTest, TheConversationUsedLongestAgoGoesFirst) {
  make({kGlobal});
  store->keep(tokens_from(0, 64));
  store->keep(tokens_from(1000, 64));
  store->keep(tokens_from(2000, 64));
  store->keep(tokens_from(0, 64) + tokens_from(500, 3));  // a use
  squeeze(16);
  EXPECT_EQ(known(tokens_from(1000, 64)), 0);
  EXPECT_EQ(known(tokens_from(0, 64)), 64);
  EXPECT_EQ(known(tokens_from(2000, 64)), 64);
}

TEST_F(ChainTest, ARestartRunGoesWholeAndTakesWhatIsWorthlessWithIt) {
  make({kGlobal, sliding(100)});
  const Tokens a = tokens_from(0, 130);
  store->keep(a, {40, 80, 128});
  EXPECT_EQ(points(a), (std::vector<int64_t>{40, 80, 128}));
  squeeze(1);
  ASSERT_EQ(evictions.gone.size(), 1u);
  // Whichever it was, every point that is left has its run (check_invariants), and nothing is kept
  // behind the last one.
  EXPECT_EQ(points(a).size(), 2u);
  EXPECT_EQ(known(a), points(a).back());
  squeeze(2);
  EXPECT_EQ(known(a), 0);
  EXPECT_EQ(store->cache->usage().idle.v + store->cache->usage().restart.v, 0);
}

// What an eviction says it frees is what it frees.
TEST_F(ChainTest, UnitsFreeWhatTheySay) {
  make({kGlobal, sliding(6), sliding(30)});
  for (int c = 0; c < 5; ++c) store->keep(tokens_from(1000 * c, 130), {40, 44, 80, 128});
  store->keep(tokens_from(0, 60) + tokens_from(7000, 40), {64, 96});
  while (store->cache->evictable().v > 0) {
    const Bytes before = store->cache->evictable();
    squeeze(1);
    Bytes said;
    for (const EvictionCandidate& unit : evictions.gone) said += {unit.unique_bytes};
    EXPECT_EQ(before - store->cache->evictable(), said);
    evictions.gone.clear();
  }
}

TEST_F(ChainTest, RunningSequencesKeepTheirPath) {
  make({kGlobal, sliding(6)});
  const SeqId seq = store->create();
  store->read(seq, tokens_from(0, 50), 1 << 20, {20, 40});
  squeeze(2);
  EXPECT_TRUE(points(tokens_from(0, 50)).empty());
  EXPECT_EQ(known(tokens_from(0, 50)), 48);
  store->read(seq, tokens_from(0, 80));
  for (const bool is_right : store->is_right) EXPECT_TRUE(is_right);
}

TEST_F(ChainTest, PinnedChainsGoLast) {
  make({kGlobal, sliding(30)});
  const Tokens a = tokens_from(0, 66), b = tokens_from(1000, 66);
  store->keep(a, {64});
  const PinId pin = store->cache->pin(PrefixStore::kDefault, a).value();
  store->keep(b, {64});
  squeeze(1);
  EXPECT_EQ(known(a), 64);
  EXPECT_EQ(known(b), 0);
  EXPECT_TRUE(store->cache->is_pinned(pin));
  squeeze(1);
  EXPECT_EQ(known(a), 0);
  EXPECT_FALSE(store->cache->is_pinned(pin));
  store->cache->unpin(pin);
}

TEST_F(ChainTest, PinsAreBoundedByTheirShare) {
  make({kGlobal}, 64 * kBlock.v);
  store->keep(tokens_from(0, 40));  // ten blocks
  store->cache->set_pin_share(0.1);
  const Status status = store->cache->pin(PrefixStore::kDefault, tokens_from(0, 40)).status();
  EXPECT_EQ(status.code(), Code::over_budget);
  EXPECT_NE(status.message().find("40 KiB"), std::string::npos) << status.message();
  EXPECT_TRUE(store->cache->pin(PrefixStore::kDefault, tokens_from(0, 20)).ok());
  // The same path again costs nothing more.
  EXPECT_TRUE(store->cache->pin(PrefixStore::kDefault, tokens_from(0, 20)).ok());
  EXPECT_EQ(store->cache->pin(PrefixStore::kDefault, tokens_from(7, 20)).status().code(),
            Code::not_found);
}

TEST_F(ChainTest, DropFreesWhatOnlyThisChainKeeps) {
  make({kGlobal});
  const Tokens shared = tokens_from(0, 20);
  const Tokens a = shared + tokens_from(100, 20), b = shared + tokens_from(200, 20);
  store->keep(a);
  store->keep(b);
  const ChainBytes chain = store->cache->bytes_of(PrefixStore::kDefault, a);
  EXPECT_EQ(chain.unique.v, 5 * kBlock.v);
  EXPECT_EQ(chain.shared.v, 5 * kBlock.v);
  EXPECT_EQ(store->cache->bytes_of(PrefixStore::kDefault, a, 28).unique, 3 * kBlock);
  EXPECT_EQ(store->cache->drop(PrefixStore::kDefault, a, 28).v, 3 * kBlock.v);
  EXPECT_EQ(known(a), 28);
  EXPECT_EQ(store->cache->drop(PrefixStore::kDefault, a, 0).v, 2 * kBlock.v);
  EXPECT_EQ(known(a), 20);
  EXPECT_EQ(known(b), 40);
  store->cache->check_invariants();
}

TEST_F(ChainTest, OthersNeedsLeaveAFloor) {
  make({kGlobal}, 24 * kBlock.v);
  const NamespaceId tenant = store->cache->open_namespace();
  store->keep(tokens_from(0, 40), {}, tenant);  // ten blocks
  store->cache->set_quota(tenant, 10 * kBlock, {});
  const SeqId seq = store->create();
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) status = store->append(seq, tokens_from(5000, 4));
  EXPECT_EQ(status.code(), Code::over_budget);
  EXPECT_EQ(store->cache->bytes_of(tenant).v, 10 * kBlock.v);
  store->cache->set_quota(tenant, {}, {});
  EXPECT_TRUE(store->append(seq, tokens_from(5000, 4)).ok());
  EXPECT_LT(store->cache->bytes_of(tenant).v, 10 * kBlock.v);
}

TEST_F(ChainTest, OverItsCeilingANamespaceEvictsItsOwnThenIsRefused) {
  make({kGlobal});
  const NamespaceId tenant = store->cache->open_namespace();
  store->keep(tokens_from(0, 40));
  store->keep(tokens_from(0, 40), {}, tenant);
  store->cache->set_quota(tenant, {}, 12 * kBlock);
  const SeqId seq = store->create(tenant);
  ASSERT_TRUE(store->append(seq, tokens_from(900, 48)).ok());
  EXPECT_EQ(store->cache->bytes_of(tenant).v, 12 * kBlock.v);
  EXPECT_EQ(known(tokens_from(0, 40)), 40);  // the other namespace paid nothing
  const Status status = store->append(seq, {1});
  EXPECT_EQ(status.code(), Code::over_budget);
  EXPECT_NE(status.message().find("48 KiB"), std::string::npos) << status.message();
}

TEST_F(ChainTest, ThinningKeepsTheFirstTheLatestAndTheBound) {
  make({kGlobal, sliding(6)});
  const Tokens a = tokens_from(0, 410);
  std::vector<int64_t> stops;
  for (int64_t p = 40; p <= 400; p += 40) stops.push_back(p);
  store->cache->set_restart_limit(4);
  store->keep(a, stops);
  EXPECT_EQ(points(a).size(), 4u);
  EXPECT_EQ(points(a).front(), 40);
  EXPECT_EQ(points(a).back(), 400);
  EXPECT_EQ(store->cache->counters().thinned_restarts, 6);

  store->cache->set_rewind_bound(80);
  const Tokens b = tokens_from(5000, 410);
  store->keep(b, stops);
  EXPECT_GT(points(b).size(), 4u);
  for (size_t i = 1; i < points(b).size(); ++i) EXPECT_LE(points(b)[i] - points(b)[i - 1], 80);
}

// What nobody holds, by purpose, at every step of a conversation's life.
TEST_F(ChainTest, AccountsSayWhatEachByteIsFor) {
  make({kGlobal, sliding(6)});
  const auto used = [&](Tag tag) { return store->budget.used(tag); };
  const SeqId seq = store->create();
  store->read(seq, tokens_from(0, 22), 1 << 20, {20});
  EXPECT_EQ(used(Tag::live_global), 6 * kBlock);
  EXPECT_EQ(used(Tag::live_local), 2 * kBlock);  // the window begins at 17
  EXPECT_EQ(used(Tag::restart), 1 * kBlock);     // rows 12..15, of the restart at 20
  EXPECT_EQ(used(Tag::idle).v, 0);
  EXPECT_EQ(used(Tag::metadata), 5 * store->cache->bytes_per_node());
  store->release(seq);
  EXPECT_EQ(used(Tag::live_global).v + used(Tag::live_local).v, 0);
  EXPECT_EQ(used(Tag::restart), 2 * kBlock);
  EXPECT_EQ(used(Tag::idle), 5 * kBlock);
  EXPECT_EQ(store->cache->evictable(), 7 * kBlock);
  store->cache->drop(PrefixStore::kDefault, tokens_from(0, 22), 0);
  EXPECT_EQ(store->budget.used().v, 0);
  EXPECT_EQ(store->memory.committed(), 0);
}

// --- the policies ---

EvictionCandidate candidate(int64_t bytes, int64_t rebuild, uint64_t age) {
  EvictionCandidate c;
  c.kind = Kind::tail;
  c.unique_bytes = bytes;
  c.rebuild_tokens = rebuild;
  c.age = age;
  c.return_rate = 1 / static_cast<double>(age + 1);
  c.last_use = 1000 - age;
  return c;
}

TEST(EvictionPolicies, CostAwareRecencyWeighsAgeCostAndBytes) {
  CostAwareRecency policy;
  using List = std::vector<EvictionCandidate>;
  EXPECT_EQ(policy.choose(List{candidate(10, 10, 5), candidate(10, 10, 9)}, 1), 1);   // older
  EXPECT_EQ(policy.choose(List{candidate(10, 10, 9), candidate(10, 99, 20)}, 1), 0);  // cheaper
  EXPECT_EQ(policy.choose(List{candidate(10, 10, 9), candidate(99, 10, 5)}, 1), 1);   // larger
  List list{candidate(10, 10, 50), candidate(10, 10, 5)};
  list[0].is_pinned = true;
  EXPECT_EQ(policy.choose(list, 1), 1);
  list[0].is_pinned = false;
  list[0].is_active = true;
  EXPECT_EQ(policy.choose(list, 1), 1);
  EXPECT_EQ(LeastRecentlyUsed().choose(list, 1), 0);
}

// --- faults: the k-th reservation or commit fails, for every k ---

void conversation(PrefixStore& store, const std::function<void(const Status&)>& done) {
  KvCache& cache = *store.cache;
  const NamespaceId tenant = cache.open_namespace();
  const Tokens prompt = tokens_from(0, 90);
  for (int turn = 0; turn < 4; ++turn) {
    const NamespaceId id = turn == 3 ? tenant : PrefixStore::kDefault;
    const PrefixMatch match = cache.match(id, prompt);
    Result<SeqId> seq = cache.resume(id, prompt, match);
    done(seq.status());
    store.tokens[*seq] = Tokens(prompt.begin(), prompt.begin() + match.first_computed());
    if (turn > 0) cache.keep_latest(*seq, true);
    for (int64_t at = match.first_computed(); at < 90;) {
      const int64_t stop = cache.replay_end(*seq) > at ? cache.replay_end(*seq) : 90;
      const int64_t end = std::min(stop, at + 23);
      const Status status = store.append(*seq, Tokens(prompt.begin() + at, prompt.begin() + end));
      done(status);
      if (status.ok()) at = end;
    }
    if (turn == 0) done(cache.fork(*seq).status());
    if (turn == 1) done(cache.rewind(*seq, 89));
    store.release(*seq);
  }
}

template <typename Arm>
void fail_each(Code expected, int64_t least, Arm arm) {
  int64_t k = 0;
  for (bool was_reached = true; was_reached && k < 300; ++k) {
    PrefixStore store(fingerprint_layout(kB, std::vector{kGlobal, sliding(6)}, 2), 1 << 20, 0);
    arm(store, k);
    was_reached = false;
    conversation(store, [&](const Status& status) {
      store.cache->check_invariants();
      if (status.ok()) return;
      EXPECT_EQ(status.code(), expected) << status.message();
      EXPECT_FALSE(was_reached);
      was_reached = true;
    });
    for (const bool is_right : store.is_right) EXPECT_TRUE(is_right);
  }
  EXPECT_GT(k, least);
}

TEST(KvFaults, NamedSequencesSurviveEveryRefusedReservation) {
  fail_each(Code::over_budget, 20,
            [](PrefixStore& store, int64_t k) { store.budget.refuse_after(k); });
}

TEST(KvFaults, NamedSequencesSurviveEveryFailedCommit) {
  fail_each(Code::io_error, 2,
            [](PrefixStore& store, int64_t k) { store.memory.fail_commit_after(k); });
}

}  // namespace
}  // namespace weir

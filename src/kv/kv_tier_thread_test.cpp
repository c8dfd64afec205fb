// A tier with a thread of its own: what it reads and writes is nobody else's meanwhile. For the
// thread sanitizer.
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "kv/testing/tier_store.h"

namespace weir {
namespace {

// Runs a MemoryTier on another thread.
class ThreadedTier final : public Tier {
 public:
  ThreadedTier() : thread_([this] { work(); }) {}
  ~ThreadedTier() override {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    has_work_.notify_one();
    thread_.join();
  }

  bool find(TierTicket ticket, std::vector<RecordKey> keys) override {
    return post([=](Tier& tier) { tier.find(ticket, keys); });
  }
  bool get(TierTicket ticket, const RecordKey& key, RecordSpace into) override {
    return post([=](Tier& tier) { tier.get(ticket, key, into); });
  }
  bool put(TierTicket ticket, const RecordKey& key, RecordBytes record) override {
    return post([=](Tier& tier) { tier.put(ticket, key, record); });
  }
  bool erase(TierTicket ticket, const RecordKey& key) override {
    return post([=](Tier& tier) { tier.erase(ticket, key); });
  }
  std::vector<TierDone> poll() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(done_, {});
  }
  void drain() override {
    std::unique_lock lock(mutex_);
    is_idle_.wait(lock, [&] { return work_.empty() && !is_busy_; });
  }
  TierStats stats() const override { return {}; }

 private:
  using Job = std::function<void(Tier&)>;

  bool post(Job job) {
    {
      const std::lock_guard lock(mutex_);
      if (work_.size() >= 8) return false;
      work_.push_back(std::move(job));
    }
    has_work_.notify_one();
    return true;
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      has_work_.wait(lock, [&] { return is_over_ || !work_.empty(); });
      if (work_.empty()) return;
      const Job job = std::move(work_.front());
      work_.pop_front();
      is_busy_ = true;
      lock.unlock();
      job(records_);
      const std::vector<TierDone> done = records_.poll();
      lock.lock();
      done_.insert(done_.end(), done.begin(), done.end());
      is_busy_ = false;
      is_idle_.notify_all();
    }
  }

  MemoryTier records_{1};  // the thread's
  std::mutex mutex_;
  std::condition_variable has_work_, is_idle_;
  std::deque<Job> work_;
  std::vector<TierDone> done_;
  bool is_busy_ = false, is_over_ = false;
  std::thread thread_;
};

TEST(TierThread, ConversationsInTurnUnderABudgetThatHoldsOne) {
  ThreadedTier tier;
  const KvLayout layout = fingerprint_layout(4, std::vector{kGlobal, sliding(9)}, 2);
  PrefixStore store(layout, 10 * 4096);
  const KvTierOptions options{.tier = &tier, .policy = nullptr, .model = "m", .ready = {INT64_MAX}};
  ASSERT_TRUE(store.cache->set_tier(options).ok());
  store.cache->set_tier_salt(PrefixStore::kDefault, "s");
  for (int turn = 0; turn < 40; ++turn) {
    const Tokens prompt = tokens_from(100 * (turn % 4), 41);
    const std::optional<LoadId> load = store.cache->start_load(PrefixStore::kDefault, prompt);
    // Sometimes nobody waits to the end.
    for (int polls = 0; load && store.cache->load_state(*load) != LoadState::ended; ++polls) {
      if (turn % 5 == 4 && polls > 1) break;
      store.cache->poll_tier();
      std::this_thread::yield();
    }
    if (load) store.cache->end_load(*load);
    store.cache->check_invariants();
    const SeqId seq = store.start(prompt);
    for (int64_t at = store.cache->length(seq); at < 41; at = store.cache->length(seq)) {
      const int64_t replay = store.cache->replay_end(seq);
      const int64_t end = replay > at ? replay : at < 40 ? 40 : 41;
      // Without room until the tier lets go of some.
      if (!store.append(seq, Tokens(prompt.begin() + at, prompt.begin() + end)).ok()) {
        store.cache->poll_tier();
        std::this_thread::yield();
        continue;
      }
      for (const bool is_right : store.is_right) EXPECT_TRUE(is_right || replay > at);
      if (end == 40) store.cache->mark_restart(seq, RestartKind::end_of_prompt);
    }
    store.release(seq);
    store.cache->write_behind({8192});
    // Mostly there is time to write; or the next prompt comes at once, and takes what was not.
    while (turn % 3 != 2 && store.cache->has_tier_work()) {
      store.cache->poll_tier();
      std::this_thread::yield();
    }
  }
  while (store.cache->has_tier_work()) store.cache->poll_tier();
  store.cache->check_invariants();
  EXPECT_GT(store.cache->tier_counters().hits, 0u);
  store.cache.reset();
  EXPECT_EQ(store.budget.used().v, 0);
}

}  // namespace
}  // namespace weir

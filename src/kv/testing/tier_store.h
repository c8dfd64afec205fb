#pragma once

#include "kv/testing/memory_tier.h"
#include "kv/testing/prefix_store.h"

namespace weir {

// A PrefixStore over a tier that outlives it.
struct TierStore : PrefixStore {
  explicit TierStore(MemoryTier& t, KvLayout layout, const TierPolicy* policy = nullptr,
                     const std::string& model = "m", const std::string& salt = "s",
                     int64_t limit = int64_t{1} << 20)
      : PrefixStore(std::move(layout), limit, 64), tier(t) {
    const KvTierOptions options{
        .tier = &tier, .policy = policy, .model = model, .max_writes = 16, .ready = {INT64_MAX}};
    WEIR_CHECK(cache->set_tier(options).ok());
    cache->set_tier_salt(kDefault, salt);
    tier_memory_at_start = cache->usage().tier_memory;
  }

  void poll(int times = 1) {
    for (int i = 0; i < times; ++i) {
      cache->poll_tier();
      cache->check_invariants();
    }
  }
  // Until nothing is under way and nothing is left to write.
  void write_all() {
    for (int i = 0; i < 100; ++i) {
      cache->write_behind({1 << 20});
      poll();
    }
    WEIR_CHECK(!cache->has_tier_work());
  }
  // Everything idle goes.
  void evict_all() {
    const Bytes limit = budget.limit();
    budget.set_limit({0});
    cache->fit_to_budget();
    cache->check_invariants();
    budget.set_limit(limit);
  }
  // What a load brings, waited for.
  PrefixMatch bring(const Tokens& prompt, NamespaceId id = kDefault) {
    const std::optional<LoadId> load = cache->start_load(id, prompt);
    if (!load) return cache->match(id, prompt);
    for (int i = 0; i < 100 && cache->load_state(*load) != LoadState::ended; ++i) poll();
    const PrefixMatch found = cache->end_load(*load);
    cache->check_invariants();
    return found;
  }
  uint64_t misses(TierMiss miss) const {
    return cache->tier_counters().misses[static_cast<size_t>(miss)];
  }
  // Nothing is left but what the index remembers of evicted blocks.
  bool is_at_baseline() {
    for (int i = 0; i < 100 && cache->has_tier_work(); ++i) poll();
    evict_all();
    const Bytes fixed = cache->usage().metadata + cache->usage().tier_memory;
    return budget.used() == fixed + tier.stats().memory && memory.committed() == 0 &&
           cache->usage().tier_memory == tier_memory_at_start;
  }

  MemoryTier& tier;
  Bytes tier_memory_at_start;
};

}  // namespace weir

#include <algorithm>
#include <map>
#include <utility>

#include "kv/kv_cache_impl.h"

namespace weir {
namespace {

// The default policy.
size_t least_recently_used(std::span<const EvictionCandidate> candidates) {
  const auto oldest = std::min_element(candidates.begin(), candidates.end(),
                                       [](const EvictionCandidate& a, const EvictionCandidate& b) {
                                         return a.last_use < b.last_use;
                                       });
  return static_cast<size_t>(oldest - candidates.begin());
}

}  // namespace

Bytes KvCache::Impl::need(const Counts& counts) const {
  Bytes sum;
  for (size_t g = 0; g < n_groups(); ++g) sum += pools[g]->need(counts[g]);
  return sum;
}

int64_t KvCache::Impl::unique_bytes(const Sequence& s) const {
  int64_t bytes = 0;
  for (size_t g = 0; g < n_groups(); ++g) {
    for (const uint32_t slot : s.tables[g].slots()) {
      if (pools[g]->references(slot) == 1) bytes += pools[g]->block_bytes().v;
    }
  }
  return bytes;
}

std::vector<EvictionCandidate> KvCache::Impl::candidates(std::span<const SeqId> keep) const {
  std::vector<EvictionCandidate> found;
  for (const auto& [id, s] : sequences) {
    if (!s.is_evictable || std::find(keep.begin(), keep.end(), id) != keep.end()) continue;
    found.push_back(
        {.seq = id, .tokens = s.length, .unique_bytes = unique_bytes(s), .last_use = s.last_use});
  }
  return found;
}

bool KvCache::Impl::has_slots(const Counts& counts) const {
  for (size_t g = 0; g < n_groups(); ++g) {
    if (!pools[g]->has_slots(0, counts[g])) return false;
  }
  return true;
}

std::optional<Bytes> KvCache::Impl::need_after_evicting(std::span<const EvictionCandidate> from,
                                                        const Counts& counts) const {
  Bytes sum;
  for (size_t g = 0; g < n_groups(); ++g) {
    std::map<uint32_t, uint32_t> references;  // that the candidates have
    for (const EvictionCandidate& c : from) {
      for (const uint32_t slot : at(c.seq).tables[g].slots()) ++references[slot];
    }
    std::vector<uint32_t> freed;
    for (const auto& [slot, n] : references) {
      if (pools[g]->references(slot) == n) freed.push_back(slot);
    }
    if (!pools[g]->has_slots(static_cast<int64_t>(freed.size()), counts[g])) return std::nullopt;
    sum += pools[g]->change(freed, counts[g]);
  }
  return sum;
}

bool KvCache::Impl::evict_one(std::span<const EvictionCandidate> from, int64_t bytes_missing) {
  size_t index = least_recently_used(from);
  if (policy) {
    const int choice = policy->choose(from, bytes_missing);
    if (choice < 0) return false;
    index = static_cast<size_t>(choice);
    WEIR_CHECK(index < from.size());
  }
  const EvictionCandidate gone = from[index];
  drop_all(at(gone.seq));
  sequences.erase(gone.seq);
  for (KvObserver* o : observers) o->on_evicted(gone.seq, gone.unique_bytes);
  return true;
}

Status KvCache::Impl::make_room(const std::function<Counts()>& counts,
                                std::span<const SeqId> keep) {
  bool is_possible = false;
  while (true) {
    const Counts wanted = counts();
    const Bytes missing = need(wanted);
    const bool is_addressable = has_slots(wanted);
    if (is_addressable && budget.would_fit(missing)) return {};
    const std::vector<EvictionCandidate> from = candidates(keep);
    const Bytes limit = budget.limit(), used = budget.used();
    // Whoever would be evicted for nothing stays. Counts are an upper bound: evictions only ever
    // turn a shared block into an owned one.
    if (!is_possible && !from.empty()) {
      const std::optional<Bytes> after = need_after_evicting(from, wanted);
      is_possible = after && used + *after <= limit;
    }
    std::string way_out = "raise the budget or end a sequence";
    if (is_possible && !from.empty()) {
      if (evict_one(from, std::max<int64_t>(1, (used + missing - limit).v))) continue;
      way_out = "the eviction policy keeps its " + std::to_string(from.size()) + " idle sequences";
    }
    if (budget.would_fit(missing)) {
      return Status(Code::over_budget,
                    "the address space of the KV pools is full; it was set when they were made: "
                    "start again with a larger KV budget or end a sequence");
    }
    return Status(Code::over_budget, "needs " + format_bytes(missing) + " more KV memory, but " +
                                         format_bytes(used) + " of the budget's " +
                                         format_bytes(limit) + " are in use; " + way_out);
  }
}

Result<KvCache::Impl::Slots> KvCache::Impl::take(const std::function<Counts()>& counts,
                                                 std::span<const SeqId> keep,
                                                 bool local_as_headroom) {
  if (Status s = make_room(counts, keep); !s.ok()) return s;
  const Counts wanted = counts();
  Slots taken(n_groups());
  for (size_t g = 0; g < n_groups(); ++g) {
    const bool as_headroom = local_as_headroom && layout.is_local(layout.groups[g]);
    Result<std::vector<uint32_t>> slots = pools[g]->take(wanted[g], as_headroom);
    if (!slots) {
      // Another thread took the bytes, or the system has no memory.
      for (size_t done = 0; done < g; ++done) {
        for (const uint32_t slot : taken[done]) pools[done]->drop(slot);
      }
      return slots.error();
    }
    taken[g] = std::move(*slots);
  }
  return taken;
}

void KvCache::fit_to_budget() {
  WEIR_CHECK(impl_->step.empty());
  Budget& budget = impl_->budget;
  while (budget.used() > budget.limit()) {
    const std::vector<EvictionCandidate> from = impl_->candidates({});
    if (from.empty() || !impl_->evict_one(from, (budget.used() - budget.limit()).v)) return;
  }
}

}  // namespace weir

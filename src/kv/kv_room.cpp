// Room in the budget: who needs blocks gets all of them or none, and what may give way goes first.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "kv/kv_cache_impl.h"

namespace weir {

Bytes KvCache::Impl::need(const Counts& counts) const {
  Bytes sum;
  for (size_t g = 0; g < n_groups(); ++g) sum += pools[g]->need(counts[g]);
  return sum;
}

bool KvCache::Impl::has_slots(const Counts& counts) const {
  for (size_t g = 0; g < n_groups(); ++g) {
    if (!pools[g]->has_slots(0, counts[g])) return false;
  }
  return true;
}

bool KvCache::Impl::release_spares() {
  bool has_released = false;
  for (const auto& pool : pools) has_released = pool->release_spares() || has_released;
  return has_released;
}

std::map<NamespaceId, Bytes> KvCache::Impl::growth_of(const Sequence& s,
                                                      const Counts& counts) const {
  if (!s.is_named()) return {};
  Bytes sum;
  for (size_t g = 0; g < n_groups(); ++g) sum += counts[g] * pools[g]->block_bytes();
  return {{payer(s), sum}};
}

std::optional<Bytes> KvCache::Impl::need_after_evicting(std::span<const EvictionCandidate> from,
                                                        const Counts& counts) const {
  Bytes sum = index.n_idle() * index.node_bytes();
  sum = Bytes{} - sum;
  for (size_t g = 0; g < n_groups(); ++g) {
    std::map<uint32_t, uint32_t> tables;  // that the candidates have of a block
    for (const EvictionCandidate& c : from) {
      if (c.kind != EvictionCandidate::Kind::sequence) continue;
      for (const uint32_t slot : at(c.seq).tables[g].slots()) ++tables[slot];
    }
    std::vector<uint32_t> freed;
    for (int64_t i = 0; i < pools[g]->end_slot(); ++i) {
      const uint32_t slot = static_cast<uint32_t>(i);
      const uint32_t references = pools[g]->references(slot);
      const auto found = tables.find(slot);
      const uint32_t going = pools[g]->keeps(slot) + (found == tables.end() ? 0 : found->second);
      if (references > 0 && references == going) freed.push_back(slot);
    }
    if (!pools[g]->has_slots(static_cast<int64_t>(freed.size()), counts[g])) return std::nullopt;
    sum += pools[g]->change(freed, counts[g]);
  }
  return sum;
}

// Evicts a namespace's own until `more` bytes fit under its ceiling.
Status KvCache::Impl::fit_ceiling(NamespaceId id, Bytes more, const Room& room) {
  const Namespace& n = space(id);
  if (n.ceiling.v == 0) return {};
  Bytes kept;
  for (size_t g = 0; g < n_groups() && n.bytes + more > n.ceiling; ++g) {
    for (int64_t i = 0; i < pools[g]->end_slot(); ++i) {
      const uint32_t slot = static_cast<uint32_t>(i);
      if (pools[g]->is_kept_only(slot) && owners[g][slot].name_space == id) {
        kept += pools[g]->block_bytes();
      }
    }
  }
  bool is_possible = n.bytes - kept + more <= n.ceiling;
  while (is_possible && n.bytes + more > n.ceiling) {
    Evictable own;
    const Evictable all = evictable(room.keep);
    for (size_t i = 0; i < all.units.size(); ++i) {
      if (!all.nodes[i] || all.units[i].name_space != id) continue;
      own.units.push_back(all.units[i]);
      own.nodes.push_back(all.nodes[i]);
    }
    is_possible = !own.units.empty() && evict_one(own, (n.bytes + more - n.ceiling).v);
  }
  if (is_possible) return {};
  return Status(Code::over_budget, "needs " + format_bytes(more) + " more KV memory, and " +
                                       format_bytes(n.bytes) + " of this tenant's " +
                                       format_bytes(n.ceiling) +
                                       " are in use; raise its quota or end one of its sequences");
}

Status KvCache::Impl::make_room(const Room& room) {
  for (const auto& [id, more] : room.growth) {
    if (Status s = fit_ceiling(id, more, room); !s.ok()) return s;
  }
  bool is_possible = false;
  while (true) {
    const Counts wanted = room.counts();
    const Bytes missing = need(wanted) + room.metadata;
    const bool is_addressable = has_slots(wanted);
    if (is_addressable && budget.would_fit(missing)) return {};
    if (release_spares()) continue;
    const Evictable from = without_protected(evictable(room.keep), room.growth);
    const Bytes limit = budget.limit(), used = budget.used();
    // Whoever would be evicted for nothing stays. Counts are an upper bound: evictions only ever
    // turn a shared block into an owned one.
    if (!is_possible && !from.units.empty()) {
      const std::optional<Bytes> after = need_after_evicting(from.units, wanted);
      is_possible = after && used + *after + room.metadata <= limit;
    }
    std::string way_out = "raise the budget or end a sequence";
    if (is_possible && !from.units.empty()) {
      if (evict_one(from, std::max<int64_t>(1, (used + missing - limit).v))) continue;
      way_out =
          "the eviction policy keeps its " + std::to_string(from.units.size()) + " candidates";
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

void KvCache::Impl::give_back(const Slots& taken) {
  for (size_t g = 0; g < n_groups(); ++g) {
    for (const uint32_t slot : taken[g]) {
      if (pools[g]->leases(slot) > 0) {
        pools[g]->unlease(slot);
      } else {
        pools[g]->drop(slot);
      }
    }
  }
}

Result<KvCache::Impl::Slots> KvCache::Impl::take(const Room& room) {
  if (Status s = make_room(room); !s.ok()) return s;
  const Counts wanted = room.counts();
  Slots taken(n_groups());
  for (size_t g = 0; g < n_groups(); ++g) {
    const BlockUse use = layout.is_local(layout.groups[g]) ? room.local_use : room.global_use;
    Result<std::vector<uint32_t>> slots = pools[g]->take(wanted[g], use);
    if (!slots) {
      // Another thread took the bytes, or the system has no memory.
      give_back(taken);
      return slots.error();
    }
    taken[g] = std::move(*slots);
  }
  return taken;
}

}  // namespace weir

// What is under way between the KV pools and the tier below them.
#include "kv/kv_tier.h"

#include <utility>

#include "kv/kv_cache_impl.h"

namespace weir {

const char* tier_miss_name(TierMiss miss) {
  switch (miss) {
    case TierMiss::not_held:
      return "not_held";
    case TierMiss::not_worth:
      return "not_worth";
    case TierMiss::no_room:
      return "no_room";
    case TierMiss::failed:
      return "failed";
    case TierMiss::corrupt:
      return "corrupt";
    case TierMiss::cancelled:
      return "cancelled";
  }
  return "unknown";
}

Status KvCache::set_tier(KvTierOptions options) {
  Impl& impl = *impl_;
  WEIR_CHECK(!impl.tier.tier() && impl.index.n_nodes() == 0 && options.max_writes > 0);
  WEIR_CHECK(impl.n_groups() <= 32);  // bits of PrefixNode::stored
  const size_t header = record_header_bytes(impl.layout.format.block_tokens);
  const auto of_write = static_cast<int64_t>(sizeof(TierSide::Write) + header);
  Result<Reservation> memory =
      impl.budget.reserve({options.max_writes * of_write}, Tag::tier_memory);
  if (!memory) return memory.error();
  impl.tier.write_memory = std::move(*memory);
  impl.tier.options = std::move(options);
  return {};
}

void KvCache::set_tier_salt(NamespaceId id, std::string_view salt) {
  Impl::Namespace& n = impl_->space(id);
  WEIR_CHECK(n.root->n_children == 0);
  n.tier_root = root_name(impl_->layout, impl_->tier.options.model, salt);
}

const TierCounters& KvCache::tier_counters() const { return impl_->tier.counters; }

bool KvCache::has_tier_work() const {
  const TierSide& tier = impl_->tier;
  return !tier.writes.empty() || !tier.finds.empty() || !tier.gets.empty();
}

void KvCache::poll_tier() {
  Impl& impl = *impl_;
  WEIR_CHECK(impl.step.empty());
  if (!impl.tier.tier()) return;
  for (const TierDone& done : impl.tier.tier()->poll()) impl.take_in(done);
  // Those that the tier had no place for.
  for (auto& [id, load] : impl.tier.loads) impl.ask_for_parts(id, load);
}

// A ticket that nothing waits for (an erase, or a tier's mistake) is nothing.
void KvCache::Impl::take_in(const TierDone& done) {
  if (const auto write = tier.writes.extract(done.ticket)) {
    return written(std::move(write.mapped()), done.is_ok);
  }
  if (const auto find = tier.finds.extract(done.ticket)) {
    const LoadId id = find.mapped();
    Load& load = tier.loads.at(id);
    if (!load.is_cancelled) read_found(id, load, done.is_ok ? done.held : std::vector<bool>{});
    return forget_load_if_over(id);
  }
  if (const auto get = tier.gets.extract(done.ticket)) {
    const auto [id, part] = get.mapped();
    arrived(id, part, done.is_ok);
    return forget_load_if_over(id);
  }
}

// When the cache goes: what is under way must not outlive the blocks it reads and writes.
void KvCache::Impl::drain_tier() {
  if (!tier.tier()) return;
  while (!tier.finds.empty()) take_in({tier.finds.begin()->first, false, {}});
  for (auto& [id, load] : tier.loads) {
    load.is_cancelled = true;
    end(load);
  }
  tier.tier()->drain();
  for (const TierDone& done : tier.tier()->poll()) take_in(done);
  // Even if the tier forgot some.
  while (!tier.writes.empty()) take_in({tier.writes.begin()->first, false, {}});
  while (!tier.gets.empty()) take_in({tier.gets.begin()->first, false, {}});
  std::vector<LoadId> left;
  for (const auto& [id, load] : tier.loads) left.push_back(id);
  for (const LoadId id : left) forget_load_if_over(id);
}

// Every operation belongs to something that waits for it, and the other way round.
void KvCache::Impl::check_tier() const {
  for (const auto& [ticket, write] : tier.writes) {
    WEIR_CHECK(pools[write.group]->is_sealed(write.slot));
    WEIR_CHECK(!write.node || (write.node->writing & bit(write.group)) != 0);
  }
  std::map<LoadId, size_t> coming;
  for (const auto& [ticket, get] : tier.gets) {
    const Load& load = tier.loads.at(get.first);
    WEIR_CHECK(load.parts.at(get.second).state == TierSide::Part::State::coming);
    ++coming[get.first];
  }
  for (const auto& [id, load] : tier.loads) {
    WEIR_CHECK(coming[id] == load.n_coming);
    WEIR_CHECK(load.state != LoadState::ended || !load.base);
    for (const TierSide::Part& part : load.parts) {
      const bool is_over = part.state == TierSide::Part::State::coming ||
                           part.state == TierSide::Part::State::released;
      WEIR_CHECK(load.state != LoadState::ended || is_over);
    }
  }
  std::map<const PrefixNode*, uint32_t> writing;
  for (const auto& [ticket, write] : tier.writes) {
    if (write.node) writing[write.node] |= bit(write.group);
  }
  for (const PrefixNode* node : index.all()) WEIR_CHECK(writing[node] == node->writing);
}

}  // namespace weir

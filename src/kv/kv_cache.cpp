#include "kv/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kv/kv_cache_impl.h"
#include "kv/pool_extent.h"

namespace weir {

Result<std::unique_ptr<KvCache>> KvCache::create(KvLayout layout, Budget& budget, KvMemory& memory,
                                                 const KvCacheOptions& options) {
  if (options.extent.v < 0 || options.extent.v % 4096 != 0) {
    return Status(Code::invalid_input, "a KV pool's extent must be a multiple of 4 KiB, not " +
                                           format_bytes(options.extent));
  }
  auto impl = std::make_unique<Impl>(std::move(layout), budget, options);
  for (const KvGroup& group : impl->layout.groups) {
    const BlockPool::Options pool_options{
        .address_space = options.address_space,
        .extent = options.extent.v > 0 ? options.extent : pool_extent(group, options.max_context),
        .poison = options.poison,
        .spare_extents = options.spare_extents};
    auto pool = BlockPool::create(group, budget, memory, impl->observers, pool_options);
    if (!pool) return pool.error();
    impl->pools.push_back(std::move(*pool));
  }
  std::unique_ptr<KvCache> cache(new KvCache(std::move(impl)));
  cache->open_namespace();
  return cache;
}

KvCache::Impl::Impl(KvLayout l, Budget& b, const KvCacheOptions& o)
    : layout(std::move(l)),
      options(o),
      budget(b),
      index(layout.format.block_tokens, layout.groups.size(), o.hash_mask),
      metadata(b.open(Tag::metadata)),
      step_metadata(b.open(Tag::metadata)),
      owners(layout.groups.size()) {}

KvCache::KvCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KvCache::~KvCache() {
  WEIR_CHECK(impl_->step.empty());
  impl_->drain_tier();
  while (!impl_->sequences.empty()) release(impl_->sequences.begin()->first);
  while (!impl_->namespaces.empty()) close_namespace(impl_->namespaces.begin()->first);
}

const KvLayout& KvCache::layout() const { return impl_->layout; }

Sequence& KvCache::Impl::at(SeqId seq) {
  const auto found = sequences.find(seq);
  WEIR_CHECK(found != sequences.end());
  return found->second;
}

Sequence& KvCache::Impl::change(SeqId seq) {
  WEIR_CHECK(step.empty());
  return at(seq);
}

SeqId KvCache::create_sequence() {
  const SeqId id{impl_->next_id++};
  Sequence& s = impl_->sequences[id];
  s.tables.resize(impl_->n_groups());
  impl_->touch(s);
  return id;
}

SeqId KvCache::create_sequence(NamespaceId id) {
  Impl::Namespace& n = impl_->space(id);
  WEIR_CHECK(!n.is_closed);
  impl_->open_ghosts();
  const SeqId seq = create_sequence();
  impl_->at(seq).tail = n.root;
  return seq;
}

// Only if they fit without anything giving way: they explain misses and do nothing else.
void KvCache::Impl::open_ghosts() {
  const Bytes size{options.ghosts * static_cast<int64_t>(sizeof(uint64_t))};
  if (ghosts.is_open() || size.v == 0 || !budget.would_fit(size)) return;
  Result<Reservation> room = budget.reserve(size, Tag::metadata);
  if (!room) return;
  metadata.merge(std::move(*room));
  ghosts.open(options.ghosts);
}

bool KvCache::is_named(SeqId seq) const { return impl_->at(seq).is_named(); }

void KvCache::Impl::drop_all(Sequence& s) {
  for (size_t g = 0; g < n_groups(); ++g) {
    // Last first: the highest slots are likely among them, so extents drain early.
    while (!s.tables[g].empty()) drop(g, s.tables[g].pop_back());
    s.tables[g].start_at(0);
  }
  leave_path(s);
  s.length = 0;
  s.positions.clear();
  s.is_inexact = false;
  s.exact_rows = 0;
}

// One past the last block that the table holds. While a sequence is being rebuilt its global
// tables reach to the end of that.
int64_t KvCache::Impl::end_block(const Sequence& s, size_t g) const {
  const bool is_ahead = s.is_replaying() && !layout.is_local(layout.groups[g]);
  return ceil_div(is_ahead ? s.replay_end : s.length, block_tokens());
}

void KvCache::Impl::trim(Sequence& s) {
  const int64_t B = block_tokens();
  for (size_t g = 0; g < n_groups(); ++g) {
    BlockTable& table = s.tables[g];
    const int64_t end = end_block(s, g);
    const int64_t first = std::min(s.first_needed_row(retention(g)) / B, end);
    while (!table.empty() && table.end_block() > end) drop(g, table.pop_back());
    while (!table.empty() && table.first_block() < first) drop(g, table.pop_front());
    if (table.empty()) table.start_at(end);
  }
}

void KvCache::Impl::seal_full(Sequence& s, size_t g, int64_t first_block) {
  const BlockTable& table = s.tables[g];
  const int64_t end = s.length / block_tokens();
  for (int64_t i = std::max(first_block, table.first_block()); i < end; ++i) {
    if (!pools[g]->is_sealed(table.at(i))) pools[g]->seal(table.at(i));
  }
}

Result<Sequence> KvCache::Impl::fork(SeqId seq) {
  Sequence& source = change(seq);
  touch(source);
  const int64_t B = block_tokens();
  const bool has_open = source.length % B != 0;
  if (source.is_replaying()) return still_replaying(source);
  const auto counts = [&] { return Counts(n_groups(), has_open ? 1 : 0); };
  Result<Slots> copies =
      take({.counts = counts, .keep = {{seq}}, .growth = growth_of(source, counts())});
  if (!copies) return copies.error();

  Sequence copy;
  copy.length = source.length;
  copy.positions = source.positions;
  copy.exact_rows = source.exact_rows;
  copy.is_inexact = source.is_inexact;
  copy.tables.resize(n_groups());
  for (size_t g = 0; g < n_groups(); ++g) {
    const BlockTable& from = source.tables[g];
    BlockTable& to = copy.tables[g];
    to.start_at(from.first_block());
    to.set_first_row(from.first_row(B));
    for (int64_t i = from.first_block(); i < from.end_block(); ++i) {
      if (has_open && i == from.end_block() - 1) {
        const uint32_t slot = (*copies)[g].front();
        own(g, slot, payer(source));
        std::memcpy(pools[g]->memory(slot), pools[g]->memory(from.at(i)),
                    static_cast<size_t>(pools[g]->block_bytes().v));
        to.push_back(slot);
      } else {
        pools[g]->share(from.at(i));
        to.push_back(from.at(i));
      }
    }
  }
  if (source.is_named()) {
    enter_path(copy, *source.tail);
    copy.open_tokens = source.open_tokens;
    copy.keeps_latest = source.keeps_latest;
  }
  touch(copy);
  return copy;
}

Status KvCache::Impl::still_replaying(const Sequence& s) {
  return Status(Code::invalid_input, "the sequence is being rebuilt: that has to reach token " +
                                         std::to_string(s.replay_end) + " first");
}

Result<SeqId> KvCache::fork(SeqId seq) {
  Result<Sequence> copy = impl_->fork(seq);
  if (!copy) return copy.error();
  const SeqId id{impl_->next_id++};
  impl_->sequences.emplace(id, std::move(*copy));
  return id;
}

void KvCache::release(SeqId seq) {
  Sequence& s = impl_->change(seq);
  impl_->touch(s);
  impl_->drop_all(s);
  const bool was_named = s.is_named();
  const NamespaceId id = impl_->payer(s);
  impl_->sequences.erase(seq);
  if (was_named) impl_->forget_namespace_if_unused(id);
}

int64_t KvCache::length(SeqId seq) const { return impl_->at(seq).length; }
int64_t KvCache::next_position(SeqId seq) const { return impl_->at(seq).next_position(); }
bool KvCache::is_inexact(SeqId seq) const { return impl_->at(seq).is_inexact; }
bool KvCache::exists(SeqId seq) const { return impl_->sequences.contains(seq); }

void KvCache::set_evictable(SeqId seq, bool evictable) {
  Sequence& s = impl_->at(seq);
  WEIR_CHECK(!evictable || !s.is_named());
  s.is_evictable = evictable;
}
void KvCache::set_eviction_policy(EvictionPolicy* policy) { impl_->policy = policy; }
void KvCache::add_observer(KvObserver* observer) { impl_->observers.push_back(observer); }

KvUsage KvCache::usage() const {
  KvUsage usage;
  for (const auto& pool : impl_->pools) {
    const bool is_global = pool->group().retention.kind == LayerKind::global;
    (is_global ? usage.global : usage.local) += pool->live();
    usage.headroom += pool->headroom();
    (is_global ? usage.idle : usage.restart) += pool->kept();
    usage.staging += pool->staging_in() + pool->staging_out();
    usage.committed_free += pool->committed_free();
  }
  for (const auto& [id, load] : impl_->tier.loads) {
    usage.metadata += load.nodes.size();
    usage.tier_memory += load.memory.size();
  }
  usage.tier_memory += impl_->tier.write_memory.size();
  usage.metadata += impl_->metadata.size() + impl_->step_metadata.size();
  return usage;
}

const KvCounters& KvCache::counters() const { return impl_->counters; }
Bytes KvCache::bytes_per_node() const { return impl_->index.node_bytes(); }

KvUsage KvCache::usage_of(SeqId seq) const {
  KvUsage usage;
  const Sequence& sequence = impl_->at(seq);
  for (size_t g = 0; g < impl_->pools.size(); ++g) {
    const KvGroup& group = impl_->pools[g]->group();
    const bool is_global = group.retention.kind == LayerKind::global;
    (is_global ? usage.global : usage.local) += sequence.tables[g].size() * group.block_bytes;
  }
  return usage;
}

}  // namespace weir

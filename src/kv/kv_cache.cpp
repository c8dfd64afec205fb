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
  auto impl = std::make_unique<Impl>(std::move(layout), budget);
  for (const KvGroup& group : impl->layout.groups) {
    const BlockPool::Options pool_options{
        .address_space = options.address_space,
        .extent = options.extent.v > 0 ? options.extent : pool_extent(group, options.max_context),
        .poison = options.poison};
    auto pool = BlockPool::create(group, budget, memory, impl->observers, pool_options);
    if (!pool) return pool.error();
    impl->pools.push_back(std::move(*pool));
  }
  return std::unique_ptr<KvCache>(new KvCache(std::move(impl)));
}

KvCache::KvCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KvCache::~KvCache() {
  WEIR_CHECK(impl_->step.empty());
  while (!impl_->sequences.empty()) release(impl_->sequences.begin()->first);
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

void KvCache::Impl::drop_all(Sequence& s) {
  for (size_t g = 0; g < n_groups(); ++g) {
    // Last first: the highest slots are likely among them, so extents drain early.
    while (!s.tables[g].empty()) pools[g]->drop(s.tables[g].pop_back());
    s.tables[g].start_at(0);
  }
  s.length = 0;
  s.positions.clear();
  s.is_inexact = false;
  s.exact_rows = 0;
}

void KvCache::Impl::trim(Sequence& s) {
  const int64_t B = block_tokens();
  const int64_t end = ceil_div(s.length, B);
  for (size_t g = 0; g < n_groups(); ++g) {
    BlockTable& table = s.tables[g];
    const int64_t first = std::min(s.first_needed_row(retention(g)) / B, end);
    while (!table.empty() && table.end_block() > end) pools[g]->drop(table.pop_back());
    while (!table.empty() && table.first_block() < first) pools[g]->drop(table.pop_front());
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
  Result<Slots> copies = take([&] { return Counts(n_groups(), has_open ? 1 : 0); }, {{seq}}, false);
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
        std::memcpy(pools[g]->memory(slot), pools[g]->memory(from.at(i)),
                    static_cast<size_t>(pools[g]->block_bytes().v));
        to.push_back(slot);
      } else {
        pools[g]->share(from.at(i));
        to.push_back(from.at(i));
      }
    }
  }
  touch(copy);
  return copy;
}

Result<SeqId> KvCache::fork(SeqId seq) {
  Result<Sequence> copy = impl_->fork(seq);
  if (!copy) return copy.error();
  const SeqId id{impl_->next_id++};
  impl_->sequences.emplace(id, std::move(*copy));
  return id;
}

void KvCache::release(SeqId seq) {
  impl_->drop_all(impl_->change(seq));
  impl_->sequences.erase(seq);
}

int64_t KvCache::length(SeqId seq) const { return impl_->at(seq).length; }
int64_t KvCache::next_position(SeqId seq) const { return impl_->at(seq).next_position(); }
bool KvCache::is_inexact(SeqId seq) const { return impl_->at(seq).is_inexact; }
bool KvCache::exists(SeqId seq) const { return impl_->sequences.contains(seq); }

void KvCache::set_evictable(SeqId seq, bool evictable) { impl_->at(seq).is_evictable = evictable; }
void KvCache::set_eviction_policy(EvictionPolicy* policy) { impl_->policy = policy; }
void KvCache::add_observer(KvObserver* observer) { impl_->observers.push_back(observer); }

KvUsage KvCache::usage() const {
  KvUsage usage;
  for (const auto& pool : impl_->pools) {
    const bool is_global = pool->group().retention.kind == LayerKind::global;
    (is_global ? usage.global : usage.local) += pool->live();
    usage.headroom += pool->headroom();
    usage.committed_free += pool->committed_free();
  }
  return usage;
}

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

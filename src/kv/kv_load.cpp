// Blocks on their way from the tier: asked for, read into blocks of the pools, verified, and put
// into the index, where the next match finds them.
#include <algorithm>
#include <utility>

#include "kv/kv_cache_impl.h"

namespace weir {

namespace {

using State = TierSide::Part::State;

bool is_held(const TierSide::Load& load, size_t g, int64_t block) {
  return load.held[g][static_cast<size_t>(block)];
}

}  // namespace

// --- asking
// ---------------------------------------------------------------------------------------

std::vector<PrefixNode*> KvCache::Impl::path_of(const Load& load) const {
  const size_t n_tokens = load.n_blocks() * static_cast<size_t>(block_tokens());
  std::vector<PrefixNode*> path;
  for (PrefixNode* node =
           &index.find(*space(load.name_space).root, std::span(load.prompt).first(n_tokens));
       !node->is_root(); node = node->parent) {
    path.push_back(node);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

Boundaries::Start KvCache::Impl::start_in_ram(const std::vector<PrefixNode*>& path) const {
  Boundaries boundaries(layout);
  for (const PrefixNode* node : path) {
    boundaries.pass([&](size_t g) { return node->blocks[g] != PrefixNode::kNoBlock; });
  }
  return boundaries.best();
}

template <typename More>
Boundaries::Start KvCache::Impl::best_start(const Load& load, const std::vector<PrefixNode*>& path,
                                            More more) const {
  Boundaries boundaries(layout);
  for (size_t i = 0; i < load.n_wanted; ++i) {
    const auto has = [&](size_t g) {
      const bool is_here = i < path.size() && path[i]->blocks[g] != PrefixNode::kNoBlock;
      return is_here || more(g, static_cast<int64_t>(i));
    };
    for (size_t g = 0; g < n_groups(); ++g) {
      if (!layout.is_local(layout.groups[g]) && !has(g)) return boundaries.best();
    }
    boundaries.pass(has);
  }
  return boundaries.best();
}

std::optional<LoadId> KvCache::start_load(NamespaceId id, std::span<const int32_t> prompt) {
  Impl& impl = *impl_;
  WEIR_CHECK(impl.step.empty());
  if (!impl.uses_tier(id) || prompt.empty()) return std::nullopt;
  const int64_t B = impl.block_tokens();
  Impl::Load load;
  load.name_space = id;
  load.prompt.assign(prompt.begin(), prompt.end());
  load.root = *impl.space(id).tier_root;
  // The last token is always computed.
  load.names = chain_names(load.root, prompt.first(prompt.size() - 1), static_cast<int>(B));
  load.n_wanted = load.n_blocks();
  load.nodes = impl.budget.open(Tag::metadata);
  // Of whom all may have to be asked.
  const size_t of_block =
      sizeof(Digest) + impl.n_groups() * (sizeof(RecordKey) + sizeof load.asked[0]);
  const Bytes size{
      static_cast<int64_t>(prompt.size() * sizeof(int32_t) + load.n_blocks() * of_block)};
  const std::vector<PrefixNode*> known = impl.path_of(load);
  impl.hold_path(load, known.empty() ? *impl.space(id).root : *known.back());
  const bool has_asked = impl.reserve_memory(load, size) && impl.ask(load);
  if (!has_asked) {
    impl.leave_path(load);
    return std::nullopt;
  }
  const LoadId load_id{impl.tier.next_load++};
  impl.tier.finds.emplace(TierTicket{impl.tier.next_ticket - 1}, load_id);
  impl.tier.loads.emplace(load_id, std::move(load));
  ++impl.tier.counters.loads;
  return load_id;
}

bool KvCache::Impl::reserve_memory(Load& load, Bytes size) {
  const auto no_blocks = [&] { return Counts(n_groups()); };
  if (!make_room({.counts = no_blocks, .metadata = size}).ok()) return false;
  Result<Reservation> memory = budget.reserve(size, Tag::tier_memory);
  if (!memory) return false;
  load.memory = std::move(*memory);
  return true;
}

// Whether the tier has what RAM lacks. False if nothing lacks, or it cannot be asked now.
bool KvCache::Impl::ask(Load& load) {
  const std::vector<PrefixNode*> path = path_of(load);
  std::vector<RecordKey> keys;
  for (size_t i = 0; i < load.n_blocks(); ++i) {
    for (size_t g = 0; g < n_groups(); ++g) {
      if (i < path.size() && path[i]->blocks[g] != PrefixNode::kNoBlock) continue;
      load.asked.emplace_back(g, static_cast<int64_t>(i));
      keys.push_back({load.names[i], static_cast<uint8_t>(g)});
    }
  }
  return !keys.empty() && tier.tier()->find(tier.ticket(), std::move(keys));
}

// The known part of the prompt neither ends nor gives way while the rest of it comes. It may have
// become longer.
void KvCache::Impl::hold_path(Load& load, PrefixNode& end) {
  const PrefixNode* const held = std::exchange(load.base, &end);
  for (PrefixNode* node = &end; node != held && !node->is_root(); node = node->parent) {
    index.add_live(*node);
    for (size_t g = 0; g < n_groups(); ++g) {
      if (!layout.is_local(layout.groups[g])) pools[g]->lease(node->blocks[g]);
    }
  }
}

void KvCache::Impl::leave_path(Load& load) {
  PrefixNode* const base = std::exchange(load.base, nullptr);
  if (!base || base->is_root()) return;
  for (PrefixNode* node = base; !node->is_root(); node = node->parent) {
    index.drop_live(*node);
    for (size_t g = 0; g < n_groups(); ++g) {
      if (!layout.is_local(layout.groups[g])) unlease(g, node->blocks[g]);
    }
  }
  trim_chain(base);
  tier.has_news = true;
}

// --- reading
// --------------------------------------------------------------------------------------

// The blocks that a start needs and RAM does not have.
std::vector<TierSide::Part> KvCache::Impl::parts_for(const Load& load,
                                                     const std::vector<PrefixNode*>& path,
                                                     const Boundaries::Start& start) const {
  const int64_t end = start.tokens / block_tokens();
  std::vector<TierSide::Part> parts;
  for (int64_t i = 0; i < end; ++i) {
    for (size_t g = 0; g < n_groups(); ++g) {
      const auto at = static_cast<size_t>(i);
      if (at < path.size() && path[at]->blocks[g] != PrefixNode::kNoBlock) continue;
      const bool is_local = layout.is_local(layout.groups[g]);
      const int64_t run = restart_blocks(retention(g), start.tokens, block_tokens());
      if (is_local && (start.heal_tokens > 0 || i < end - run)) continue;
      WEIR_CHECK(is_held(load, g, i));
      parts.push_back({.group = g, .block = i});
    }
  }
  return parts;
}

// The tier has answered what it holds.
void KvCache::Impl::read_found(LoadId id, Load& load, const std::vector<bool>& held) {
  load.held.assign(n_groups(), std::vector<bool>(load.n_blocks()));
  for (size_t i = 0; i < std::min(held.size(), load.asked.size()); ++i) {
    const auto& [g, block] = load.asked[i];
    load.held[g][static_cast<size_t>(block)] = held[i];
  }
  const std::vector<PrefixNode*> path = path_of(load);
  const Boundaries::Start here = start_in_ram(path);
  const Boundaries::Start start =
      best_start(load, path, [&](size_t g, int64_t i) { return is_held(load, g, i); });
  const int64_t saved = start.first_computed() - here.first_computed();
  if (saved <= 0) {
    tier.count(TierMiss::not_held);
    return end(load);
  }
  load.parts = parts_for(load, path, start);
  Bytes bytes;
  for (const TierSide::Part& part : load.parts) bytes += pools[part.group]->block_bytes();
  if (!tier.is_worth(saved, bytes)) {
    tier.count(TierMiss::not_worth);
    load.parts.clear();
    return end(load);
  }
  if (!take_parts(load, path, start).ok()) {
    tier.count(TierMiss::no_room);
    load.parts.clear();
    return end(load);
  }
  load.state = LoadState::reading;
  load.promised = start.first_computed();
  load.n_wanted = static_cast<size_t>(start.tokens / block_tokens());
  ask_for_parts(id, load);
  if (load.parts.empty()) install(load);  // a boundary before which nothing is read
}

// Blocks for the parts, and the index's memory for the nodes that they may need. What RAM has of
// the run was used just now, so that it is not what gives way.
Status KvCache::Impl::take_parts(Load& load, const std::vector<PrefixNode*>& path,
                                 const Boundaries::Start& start) {
  if (!path.empty()) hold_path(load, *path.back());
  ++clock;
  for (PrefixNode* node : path) {
    node->last_use = clock;
    if (node->restart) node->restart->last_use = clock;
  }
  Counts counts(n_groups());
  Bytes bytes;
  for (const TierSide::Part& part : load.parts) {
    ++counts[part.group];
    bytes += pools[part.group]->block_bytes();
  }
  const auto known = static_cast<int64_t>(path.size());
  const Bytes nodes =
      std::max<int64_t>(0, start.tokens / block_tokens() - known) * index.node_bytes();
  const size_t header_bytes = record_header_bytes(layout.format.block_tokens);
  const Bytes headers{
      static_cast<int64_t>(load.parts.size() * (sizeof(TierSide::Part) + header_bytes))};
  Result<Slots> taken = take({.counts = [&] { return counts; },
                              .global_use = BlockUse::staging_in,
                              .local_use = BlockUse::staging_in,
                              .metadata = nodes + headers,
                              .growth = {{load.name_space, bytes}}});
  if (!taken) return taken.error();
  for (Reservation* to : {&load.nodes, &load.memory}) {
    Result<Reservation> room = budget.reserve(to == &load.nodes ? nodes : headers, to->tag());
    if (!room) {
      give_back(*taken);
      return room.error();
    }
    to->merge(std::move(*room));
  }
  for (auto part = load.parts.rbegin(); part != load.parts.rend(); ++part) {
    part->slot = (*taken)[part->group].back();
    (*taken)[part->group].pop_back();
    own(part->group, part->slot, load.name_space);
    part->header.resize(header_bytes);
  }
  return {};
}

// As many as the tier takes now.
void KvCache::Impl::ask_for_parts(LoadId id, Load& load) {
  if (load.is_cancelled || load.state != LoadState::reading) return;
  for (size_t i = 0; i < load.parts.size(); ++i) {
    TierSide::Part& part = load.parts[i];
    if (part.state != State::wanted) continue;
    const TierTicket ticket = tier.ticket();
    const RecordKey key{load.names[static_cast<size_t>(part.block)],
                        static_cast<uint8_t>(part.group)};
    if (!tier.tier()->get(ticket, key, {part.header, pools[part.group]->contents(part.slot)})) {
      return;
    }
    part.state = State::coming;
    ++load.n_coming;
    tier.gets.emplace(ticket, std::pair(id, i));
  }
}

void KvCache::Impl::arrived(LoadId id, size_t part_index, bool is_ok) {
  Load& load = tier.loads.at(id);
  TierSide::Part& part = load.parts[part_index];
  --load.n_coming;
  part.state = State::lost;
  if (load.is_cancelled) return release_parts(load);
  const auto at = static_cast<size_t>(part.block);
  const size_t B = static_cast<size_t>(block_tokens());
  const std::span<const int32_t> prompt(load.prompt);
  const std::span<const std::byte> block = pools[part.group]->contents(part.slot);
  if (is_ok) {
    const auto tokens = prompt.subspan(at * B, B);
    const Status status =
        check_record({part.header, block}, {.group = static_cast<uint32_t>(part.group),
                                            .index = part.block,
                                            .block_bytes = block.size(),
                                            .parent = load.parent_of(part.block),
                                            .tokens = {tokens.begin(), tokens.end()}});
    if (status.ok()) {
      part.state = State::arrived;
      ++tier.counters.read_records;
      tier.counters.read += Bytes{static_cast<int64_t>(part.header.size() + block.size())};
    } else {
      load.is_corrupt = true;
      // So that nobody reads it again.
      tier.tier()->erase(tier.ticket(), {load.names[at], static_cast<uint8_t>(part.group)});
    }
  }
  const auto is_over = [](const TierSide::Part& p) {
    return p.state == State::arrived || p.state == State::lost;
  };
  if (std::ranges::all_of(load.parts, is_over)) install(load);
}

// --- into the index
// -------------------------------------------------------------------------------

// All that should come has come, or not. What is there now decides: others may have computed part
// of it meanwhile, or made something give way.
void KvCache::Impl::install(Load& load) {
  std::vector<std::vector<bool>> has(n_groups(), std::vector<bool>(load.n_blocks()));
  for (const TierSide::Part& part : load.parts) {
    has[part.group][static_cast<size_t>(part.block)] = part.state == State::arrived;
    if (part.state == State::arrived) pools[part.group]->arrive(part.slot);
  }
  const std::vector<PrefixNode*> path = path_of(load);
  for (const TierSide::Part& part : load.parts) {
    const auto at = static_cast<size_t>(part.block);
    if (part.state == State::lost && at < path.size()) path[at]->stored &= ~bit(part.group);
  }
  const Boundaries::Start here = start_in_ram(path);
  const Boundaries::Start start =
      best_start(load, path, [&](size_t g, int64_t i) { return has[g][static_cast<size_t>(i)]; });
  const int64_t saved = start.first_computed() - here.first_computed();
  if (saved > 0) {
    PrefixNode& node = install_nodes(load, path, start);
    if (start.heal_tokens == 0 && mark(node, RestartKind::end_of_prompt)) thin(node);
    ++tier.counters.hits;
    tier.counters.hit_tokens += static_cast<uint64_t>(saved);
  }
  if (start.first_computed() < load.promised) {
    tier.count(load.is_corrupt ? TierMiss::corrupt : TierMiss::failed);
  }
  end(load);
}

// The nodes up to the start, with the blocks that came for them. Returns the last.
PrefixNode& KvCache::Impl::install_nodes(Load& load, const std::vector<PrefixNode*>& path,
                                         const Boundaries::Start& start) {
  const int64_t B = block_tokens(), end = start.tokens / B;
  std::vector<PrefixNode*> nodes = path;
  for (auto i = static_cast<int64_t>(path.size()); i < end; ++i) {
    PrefixNode& parent = nodes.empty() ? *space(load.name_space).root : *nodes.back();
    const auto tokens =
        std::span(load.prompt).subspan(static_cast<size_t>(i * B), static_cast<size_t>(B));
    nodes.push_back(&index.add(parent, tokens));
    nodes.back()->last_use = ++clock;
    metadata.merge(load.nodes.split(index.node_bytes()));
  }
  for (const TierSide::Part& part : load.parts) {
    if (part.state != State::arrived || part.block >= end) continue;
    PrefixNode& node = *nodes[static_cast<size_t>(part.block)];
    if (node.blocks[part.group] == PrefixNode::kNoBlock) name(part.group, part.slot, node);
    node.stored |= bit(part.group);
  }
  return *nodes[static_cast<size_t>(end - 1)];
}

// --- the end
// --------------------------------------------------------------------------------------

void KvCache::Impl::end(Load& load) {
  load.state = LoadState::ended;
  release_parts(load);
  leave_path(load);
  load.nodes = budget.open(Tag::metadata);
}

// But for those that the tier still writes to: they keep their places in the list.
void KvCache::Impl::release_parts(Load& load) {
  for (TierSide::Part& part : load.parts) {
    if (part.state == State::coming || part.state == State::released) continue;
    part.state = State::released;
    unlease(part.group, part.slot);
  }
}

LoadState KvCache::load_state(LoadId load) const { return impl_->tier.loads.at(load).state; }

PrefixMatch KvCache::end_load(LoadId id) {
  Impl& impl = *impl_;
  WEIR_CHECK(impl.step.empty());
  Impl::Load& load = impl.tier.loads.at(id);
  WEIR_CHECK(!load.is_cancelled);
  if (load.state != LoadState::ended) {
    impl.tier.count(TierMiss::cancelled);
    impl.end(load);
  }
  load.is_cancelled = true;
  PrefixMatch found = match(load.name_space, load.prompt);
  if (load.promised > found.first_computed()) {
    found.reason = MissReason::load_failed;
    found.lost = std::max(found.lost, load.promised - found.first_computed());
  }
  impl.forget_load_if_over(id);
  return found;
}

void KvCache::Impl::forget_load_if_over(LoadId id) {
  const auto found = tier.loads.find(id);
  if (found == tier.loads.end()) return;
  const Load& load = found->second;
  if (!load.is_cancelled || load.n_coming > 0) return;
  for (const auto& [ticket, waiting] : tier.finds) {
    if (waiting == id) return;
  }
  const NamespaceId name_space = load.name_space;
  tier.loads.erase(found);
  if (namespaces.contains(name_space)) forget_namespace_if_unused(name_space);
}

}  // namespace weir

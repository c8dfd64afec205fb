#include <algorithm>
#include <string>
#include <utility>

#include "kv/kv_cache_impl.h"

namespace weir {

// Rows before this one are not read after the earliest end that the step can have, nor needed to
// restart at the last block boundary before it.
int64_t KvCache::Impl::first_stored_row(const Sequence& s, size_t g, int64_t sure) const {
  const int64_t needed = s.first_needed_row(retention(g), sure);
  if (!s.keeps_latest) return needed;
  const int64_t boundary = (s.length + sure) / block_tokens() * block_tokens();
  return std::min(needed, first_visible(retention(g), boundary));
}

std::vector<KvCache::Impl::StepItemState> KvCache::Impl::plan(
    std::span<const StepItem> items) const {
  const int64_t B = block_tokens();
  std::vector<StepItemState> planned;
  for (const StepItem& item : items) {
    const Sequence& s = at(item.seq);
    WEIR_CHECK(item.n_tokens > 0 && item.sure() <= item.n_tokens);
    WEIR_CHECK(std::none_of(planned.begin(), planned.end(),
                            [&](const StepItemState& p) { return p.seq == item.seq; }));
    StepItemState state{.seq = item.seq,
                        .n_tokens = item.n_tokens,
                        .min_accept = item.sure(),
                        .first_position = s.next_position(),
                        .groups = {},
                        .tokens = {}};
    if (s.is_named()) state.tokens.assign(item.tokens.begin(), item.tokens.end());
    for (size_t g = 0; g < n_groups(); ++g) {
      NewBlocks& blocks = state.groups.emplace_back();
      blocks.first_new = ceil_div(s.length + item.n_tokens, B);
      if (reads_stored_rows(s, g)) continue;
      const int64_t first_row = first_stored_row(s, g, item.sure());
      const int64_t added = new_blocks_of_rows(first_row, s.length, item.n_tokens, B);
      blocks.first_new -= added;
      blocks.scratch = blocks.first_new - ceil_div(s.length, B);
      blocks.slots.resize(static_cast<size_t>(added));
    }
    planned.push_back(std::move(state));
  }
  return planned;
}

KvCache::Impl::Counts KvCache::Impl::new_block_counts(
    const std::vector<StepItemState>& items) const {
  Counts counts(n_groups());
  for (const StepItemState& item : items) {
    for (size_t g = 0; g < n_groups(); ++g) {
      counts[g] += static_cast<int64_t>(item.groups[g].slots.size());
    }
  }
  return counts;
}

StepTable KvCache::Impl::table(const StepItemState& item, size_t g, int32_t first_scratch) const {
  const Sequence& s = at(item.seq);
  const BlockTable& held = s.tables[g];
  const NewBlocks& added = item.groups[g];
  StepTable table;
  table.first_row = held.first_block() * block_tokens();
  table.n_past = s.length;
  table.n_new = item.n_tokens;
  table.is_stored = reads_stored_rows(s, g);
  // Stored rows after the step are there, but not its business.
  const int64_t end =
      table.is_stored ? ceil_div(s.length + item.n_tokens, block_tokens()) : held.end_block();
  for (int64_t i = held.first_block(); i < end; ++i) {
    table.blocks.push_back({pools[g]->memory(held.at(i)), -1});
  }
  for (int32_t i = 0; i < added.scratch; ++i) table.blocks.push_back({nullptr, first_scratch + i});
  for (const uint32_t slot : added.slots) table.blocks.push_back({pools[g]->memory(slot), -1});
  if ((s.is_inexact || s.is_replaying()) && layout.is_local(layout.groups[g])) {
    for (int64_t i = 0; i < item.n_tokens; ++i) {
      // Rows before the start of a rebuilding are not there.
      table.first_visible_row.push_back(
          std::max(s.replay_begin, s.first_needed_row(retention(g), i)));
    }
  }
  return table;
}

StepTable KvCache::held_table(SeqId seq, size_t group) const {
  Impl::StepItemState nothing{
      .seq = seq, .n_tokens = 0, .min_accept = 0, .first_position = 0, .groups = {}, .tokens = {}};
  nothing.groups.resize(impl_->n_groups());
  return impl_->table(nothing, group, 0);
}

int64_t KvCache::first_held_row(SeqId seq, size_t group) const {
  return impl_->at(seq).tables[group].first_row(impl_->block_tokens());
}

Bytes KvCache::step_need(std::span<const StepItem> items) const {
  const std::vector<Impl::StepItemState> planned = impl_->plan(items);
  return impl_->need(impl_->new_block_counts(planned)) + impl_->node_need(planned);
}

// For every block that may fill, as if none were known yet.
Bytes KvCache::Impl::node_need(const std::vector<StepItemState>& items) const {
  int64_t nodes = 0;
  for (const StepItemState& item : items) {
    const Sequence& s = at(item.seq);
    if (!s.is_named() || s.is_replaying()) continue;
    nodes += (s.length + item.n_tokens) / block_tokens() - s.length / block_tokens();
  }
  return nodes * index.node_bytes();
}

std::map<NamespaceId, Bytes> KvCache::Impl::growth_of(
    const std::vector<StepItemState>& items) const {
  std::map<NamespaceId, Bytes> growth;
  for (const StepItemState& item : items) {
    const Sequence& s = at(item.seq);
    if (!s.is_named()) continue;
    for (size_t g = 0; g < n_groups(); ++g) {
      growth[payer(s)] +=
          static_cast<int64_t>(item.groups[g].slots.size()) * pools[g]->block_bytes();
    }
  }
  return growth;
}

// What a step must be, beyond what its caller could only get wrong by a bug.
Status KvCache::Impl::check_items(std::span<const StepItem> items) const {
  for (const StepItem& item : items) {
    const Sequence& s = at(item.seq);
    if (!s.is_named()) continue;
    WEIR_CHECK(static_cast<int64_t>(item.tokens.size()) == item.n_tokens);
    if (!s.is_replaying()) continue;
    if (s.length + item.n_tokens > s.replay_end) {
      return Status(Code::invalid_input,
                    "a step of " + std::to_string(item.n_tokens) + " tokens crosses token " +
                        std::to_string(s.replay_end) + ", where the rebuilding of local rows ends");
    }
    WEIR_CHECK(item.sure() == item.n_tokens);
    check_replayed(s, item.tokens);
  }
  return {};
}

Result<Step> KvCache::plan_step(std::span<const StepItem> items) {
  WEIR_CHECK(impl_->step.empty() && !items.empty());
  if (Status s = impl_->check_items(items); !s.ok()) return s;
  std::vector<Impl::StepItemState> planned = impl_->plan(items);
  const Impl::Counts counts = impl_->new_block_counts(planned);
  std::vector<SeqId> keep;
  for (const StepItem& item : items) keep.push_back(item.seq);
  const Bytes nodes = impl_->node_need(planned);
  Result<Impl::Slots> taken = impl_->take({.counts = [&] { return counts; },
                                           .keep = keep,
                                           .local_use = BlockUse::headroom,
                                           .metadata = nodes,
                                           .growth = impl_->growth_of(planned)});
  if (!taken) return taken.error();
  if (nodes.v > 0) {
    Result<Reservation> room = impl_->budget.reserve(nodes, Tag::metadata);
    if (!room) {
      impl_->give_back(*taken);
      return room.error();
    }
    impl_->step_metadata.merge(std::move(*room));
  }

  Step step;
  step.cache_ = this;
  step.items_.assign(items.begin(), items.end());
  step.tables_.resize(items.size());
  for (size_t g = 0; g < impl_->n_groups(); ++g) {
    size_t next = 0;
    int32_t scratch = 0;
    for (size_t i = 0; i < planned.size(); ++i) {
      Impl::NewBlocks& added = planned[i].groups[g];
      for (uint32_t& slot : added.slots) {
        slot = (*taken)[g][next++];
        impl_->own(g, slot, impl_->payer(impl_->at(planned[i].seq)));
      }
      step.tables_[i].push_back(impl_->table(planned[i], g, scratch));
      scratch += static_cast<int32_t>(added.scratch);
    }
    step.scratch_blocks_.push_back(scratch);
  }
  impl_->step = std::move(planned);
  return step;
}

// Makes the new blocks that hold accepted rows part of the table and drops the others. Runs before
// the sequence's length changes.
void KvCache::Impl::adopt(Sequence& s, size_t g, NewBlocks& added, int64_t accepted) {
  BlockTable& table = s.tables[g];
  const int64_t end = ceil_div(s.length + accepted, block_tokens());
  if (added.scratch > 0 && accepted > 0) {
    // The blocks before scratch hold nothing that is read from here on: the window begins after it.
    while (!table.empty()) drop(g, table.pop_back());
    table.start_at(added.first_new);
  }
  int64_t block = added.first_new;
  for (const uint32_t slot : added.slots) {
    if (block++ < end && accepted > 0) {
      pools[g]->settle(slot);
      table.push_back(slot);
    } else {
      drop(g, slot);
    }
  }
}

void KvCache::Impl::commit_item(StepItemState& item, int64_t accepted) {
  WEIR_CHECK(accepted == 0 || (accepted >= item.min_accept && accepted <= item.n_tokens));
  Sequence& s = at(item.seq);
  const bool was_replaying = s.is_replaying();
  for (size_t g = 0; g < n_groups(); ++g) adopt(s, g, item.groups[g], accepted);
  for (int64_t t = 0; s.is_inexact && t < accepted; ++t) {
    s.positions.push_back(item.first_position + t);
  }
  const int64_t open_block = s.length / block_tokens();
  s.length += accepted;
  touch(s);
  for (size_t g = 0; g < n_groups(); ++g) seal_full(s, g, open_block);
  const std::span<const int32_t> tokens(item.tokens);
  if (s.is_named() && !was_replaying) {
    extend_path(s, tokens.first(static_cast<size_t>(accepted)));
    move_latest(s);
  }
  trim(s);
  if (was_replaying) replayed(s, tokens.first(static_cast<size_t>(accepted)));
}

void KvCache::Impl::commit(std::span<const int64_t> accepted) {
  WEIR_CHECK(!step.empty() && accepted.size() == step.size());
  std::vector<StepItemState> items = std::exchange(step, {});
  int64_t tokens = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    commit_item(items[i], accepted[i]);
    tokens += accepted[i];
  }
  step_metadata = budget.open(Tag::metadata);  // what no node needed
  for (KvObserver* o : observers) o->on_step_committed(tokens);
}

void KvCache::Impl::abort() {
  WEIR_CHECK(!step.empty());
  for (const StepItemState& item : std::exchange(step, {})) {
    for (size_t g = 0; g < n_groups(); ++g) {
      for (const uint32_t slot : item.groups[g].slots) drop(g, slot);
    }
  }
  step_metadata = budget.open(Tag::metadata);
  for (KvObserver* o : observers) o->on_step_aborted();
}

Step::Step(Step&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      items_(std::move(other.items_)),
      tables_(std::move(other.tables_)),
      scratch_blocks_(std::move(other.scratch_blocks_)) {}

Step::~Step() {
  if (cache_) abort();
}

std::vector<int64_t> Step::positions(size_t item) const {
  WEIR_CHECK(cache_ != nullptr);
  const KvCache::Impl::StepItemState& state = cache_->impl_->step[item];
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < state.n_tokens; ++i) positions.push_back(state.first_position + i);
  return positions;
}

void Step::commit(std::span<const int64_t> accepted) {
  WEIR_CHECK(cache_ != nullptr);
  std::exchange(cache_, nullptr)->impl_->commit(accepted);
}

void Step::commit() {
  std::vector<int64_t> all;
  for (const StepItem& item : items_) all.push_back(item.n_tokens);
  commit(all);
}

void Step::abort() {
  WEIR_CHECK(cache_ != nullptr);
  std::exchange(cache_, nullptr)->impl_->abort();
}

}  // namespace weir

#include <algorithm>
#include <utility>

#include "kv/kv_cache_impl.h"

namespace weir {

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
                        .groups = {}};
    for (size_t g = 0; g < n_groups(); ++g) {
      const int64_t end = ceil_div(s.length + item.n_tokens, B);
      // Rows before this one are not read after the earliest end that the step can have.
      const int64_t first_row = s.first_needed_row(retention(g), item.sure());
      const int64_t added = new_blocks_of_rows(first_row, s.length, item.n_tokens, B);
      NewBlocks blocks;
      blocks.first_new = end - added;
      blocks.scratch = blocks.first_new - ceil_div(s.length, B);
      blocks.slots.resize(static_cast<size_t>(added));
      state.groups.push_back(std::move(blocks));
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
  for (const uint32_t slot : held.slots()) table.blocks.push_back({pools[g]->memory(slot), -1});
  for (int32_t i = 0; i < added.scratch; ++i) table.blocks.push_back({nullptr, first_scratch + i});
  for (const uint32_t slot : added.slots) table.blocks.push_back({pools[g]->memory(slot), -1});
  if (s.is_inexact && layout.is_local(layout.groups[g])) {
    for (int64_t i = 0; i < item.n_tokens; ++i) {
      table.first_visible_row.push_back(s.first_needed_row(retention(g), i));
    }
  }
  return table;
}

StepTable KvCache::held_table(SeqId seq, size_t group) const {
  Impl::StepItemState nothing{
      .seq = seq, .n_tokens = 0, .min_accept = 0, .first_position = 0, .groups = {}};
  nothing.groups.resize(impl_->n_groups());
  return impl_->table(nothing, group, 0);
}

int64_t KvCache::first_held_row(SeqId seq, size_t group) const {
  return impl_->at(seq).tables[group].first_row(impl_->block_tokens());
}

Bytes KvCache::step_need(std::span<const StepItem> items) const {
  return impl_->need(impl_->new_block_counts(impl_->plan(items)));
}

Result<Step> KvCache::plan_step(std::span<const StepItem> items) {
  WEIR_CHECK(impl_->step.empty() && !items.empty());
  std::vector<Impl::StepItemState> planned = impl_->plan(items);
  const Impl::Counts counts = impl_->new_block_counts(planned);
  std::vector<SeqId> keep;
  for (const StepItem& item : items) keep.push_back(item.seq);
  Result<Impl::Slots> taken = impl_->take([&] { return counts; }, keep, true);
  if (!taken) return taken.error();

  Step step;
  step.cache_ = this;
  step.items_.assign(items.begin(), items.end());
  step.tables_.resize(items.size());
  for (size_t g = 0; g < impl_->n_groups(); ++g) {
    size_t next = 0;
    int32_t scratch = 0;
    for (size_t i = 0; i < planned.size(); ++i) {
      Impl::NewBlocks& added = planned[i].groups[g];
      for (uint32_t& slot : added.slots) slot = (*taken)[g][next++];
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
    while (!table.empty()) pools[g]->drop(table.pop_back());
    table.start_at(added.first_new);
  }
  int64_t index = added.first_new;
  for (const uint32_t slot : added.slots) {
    if (index++ < end && accepted > 0) {
      pools[g]->settle(slot);
      table.push_back(slot);
    } else {
      pools[g]->drop(slot);
    }
  }
}

void KvCache::Impl::commit(std::span<const int64_t> accepted) {
  WEIR_CHECK(!step.empty() && accepted.size() == step.size());
  std::vector<StepItemState> items = std::exchange(step, {});
  int64_t tokens = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    StepItemState& item = items[i];
    WEIR_CHECK(accepted[i] == 0 ||
               (accepted[i] >= item.min_accept && accepted[i] <= item.n_tokens));
    Sequence& s = at(item.seq);
    for (size_t g = 0; g < n_groups(); ++g) adopt(s, g, item.groups[g], accepted[i]);
    for (int64_t t = 0; s.is_inexact && t < accepted[i]; ++t) {
      s.positions.push_back(item.first_position + t);
    }
    const int64_t open_block = s.length / block_tokens();
    s.length += accepted[i];
    trim(s);
    for (size_t g = 0; g < n_groups(); ++g) seal_full(s, g, open_block);
    touch(s);
    tokens += accepted[i];
  }
  for (KvObserver* o : observers) o->on_step_committed(tokens);
}

void KvCache::Impl::abort() {
  WEIR_CHECK(!step.empty());
  for (const StepItemState& item : std::exchange(step, {})) {
    for (size_t g = 0; g < n_groups(); ++g) {
      for (const uint32_t slot : item.groups[g].slots) pools[g]->drop(slot);
    }
  }
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

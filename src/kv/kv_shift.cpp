#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kv/block_rows.h"
#include "kv/kv_cache_impl.h"

namespace weir {
namespace {

// Positions stay far from overflow.
constexpr int64_t kMaxPosition = int64_t{1} << 48;

struct RowRange {
  int64_t begin, end;
};

// Rows whose positions are in [p0, p1), with llama.cpp's meaning of negative ends.
RowRange rows_of(const Sequence& s, int64_t p0, int64_t p1) {
  const int64_t begin = std::min(s.length, s.row_from(std::max<int64_t>(0, p0)));
  const int64_t end = p1 < 0 ? s.length : std::min(s.length, s.row_from(p1));
  return {begin, std::max(begin, end)};
}

std::vector<int64_t> all_positions(const Sequence& s) {
  std::vector<int64_t> positions;
  for (int64_t row = 0; row < s.length; ++row) positions.push_back(s.position_of(row));
  return positions;
}

}  // namespace

// The sequence as it would be with other positions: for asking which rows it then needs.
void KvCache::Impl::set_positions(Sequence& s, std::vector<int64_t> positions,
                                  int64_t first_changed) {
  s.exact_rows = s.is_inexact ? std::min(s.exact_rows, first_changed) : first_changed;
  s.is_inexact = true;
  s.length = static_cast<int64_t>(positions.size());
  s.positions = std::move(positions);
}

Status KvCache::seq_rm(SeqId seq, int64_t p0, int64_t p1) {
  const Sequence& s = impl_->change(seq);
  const RowRange rows = rows_of(s, p0, p1);
  if (rows.begin == rows.end) return {};
  if (rows.end == s.length) return impl_->rewind(seq, rows.begin);
  return impl_->remove_middle(seq, rows.begin, rows.end);
}

Status KvCache::Impl::remove_middle(SeqId seq, int64_t row0, int64_t row1) {
  Sequence& s = change(seq);
  if (s.is_replaying()) return still_replaying(s);
  const int64_t B = block_tokens();
  const int64_t removed = row1 - row0;
  std::vector<int64_t> positions = all_positions(s);
  positions.erase(positions.begin() + row0, positions.begin() + row1);
  Sequence after;
  after.is_inexact = s.is_inexact;
  after.exact_rows = s.exact_rows;
  set_positions(after, std::move(positions), row0);
  const int64_t end = ceil_div(after.length, B);

  // The blocks that the sequence holds afterwards, and where their content begins: the last
  // position does not change, so the rows read next are among those read next before, and are held.
  struct Target {
    int64_t first_block, first_row;
  };
  std::vector<Target> targets;
  for (size_t g = 0; g < n_groups(); ++g) {
    const int64_t needed = after.first_needed_row(retention(g));
    const int64_t held = s.tables[g].first_row(B);
    const int64_t first_block = std::min(needed / B, end);
    const int64_t first_row = held <= row0 ? held : std::max(held, row1) - removed;
    WEIR_CHECK(needed == after.length || needed >= first_row);
    targets.push_back({first_block, std::max(first_row, first_block * B)});
  }
  // Rows from row0 on move down by `removed`, in place where the block has no other owner.
  const auto is_kept = [&](int64_t block) { return (block + 1) * B <= row0; };
  const auto is_own = [&](size_t g, int64_t block) {
    return s.tables[g].holds(block) && pools[g]->references(s.tables[g].at(block)) == 1;
  };
  const auto counts = [&] {
    Counts wanted(n_groups());
    for (size_t g = 0; g < n_groups(); ++g) {
      for (int64_t i = targets[g].first_block; i < end; ++i) {
        if (!is_kept(i) && !is_own(g, i)) ++wanted[g];
      }
    }
    return wanted;
  };
  Result<Slots> copies = take({.counts = counts, .keep = {{seq}}});
  if (!copies) return copies.error();

  for (size_t g = 0; g < n_groups(); ++g) {
    BlockTable& from = s.tables[g];
    BlockPool& pool = *pools[g];
    BlockTable to;
    to.start_at(targets[g].first_block);
    to.set_first_row(targets[g].first_row);
    std::vector<uint32_t> left;  // references that the old table has and the new one has not
    size_t next_copy = 0;
    for (int64_t i = from.first_block(); i < from.end_block(); ++i) {
      if (i < targets[g].first_block || i >= end) left.push_back(from.at(i));
    }
    for (int64_t i = targets[g].first_block; i < end; ++i) {
      if (is_kept(i) || is_own(g, i)) {
        if (!is_kept(i)) unname(g, from.at(i));
        to.push_back(from.at(i));
        continue;
      }
      if (from.holds(i)) left.push_back(from.at(i));
      to.push_back((*copies)[g][next_copy++]);
    }
    // Ascending, so that in place a row is read before it is overwritten.
    for (int64_t row = targets[g].first_row; row < after.length; ++row) {
      const int64_t source = row < row0 ? row : row + removed;
      const uint32_t from_slot = from.at(source / B), to_slot = to.at(row / B);
      if (from_slot == to_slot && source == row) continue;
      copy_row(pool.group(), pool.memory(from_slot), static_cast<int>(source % B),
               pool.memory(to_slot), static_cast<int>(row % B));
    }
    for (const uint32_t slot : left) drop(g, slot);
    from = std::move(to);
    if (after.length % B != 0) reopen(g, from.at(end - 1));
  }
  s.length = after.length;
  s.positions = std::move(after.positions);
  s.exact_rows = after.exact_rows;
  s.is_inexact = true;
  forget_name(s);
  trim(s);
  for (size_t g = 0; g < n_groups(); ++g) seal_full(s, g, 0);
  touch(s);
  return {};
}

Status KvCache::Impl::move_positions(SeqId seq, int64_t row0, int64_t row1,
                                     std::vector<int64_t> moved, const KeyRotator& rotator) {
  Sequence& s = change(seq);
  if (s.is_replaying()) return still_replaying(s);
  const int64_t B = block_tokens();
  if (!std::is_sorted(moved.begin(), moved.end()) || moved.front() < 0 ||
      moved.back() > kMaxPosition) {
    return Status(Code::invalid_input,
                  "cannot move positions: they would be negative or no longer ascend");
  }
  Sequence after;
  after.is_inexact = s.is_inexact;
  after.exact_rows = s.exact_rows;
  set_positions(after, std::move(moved), row0);
  std::vector<int64_t> first_row(n_groups());  // that is still needed
  for (size_t g = 0; g < n_groups(); ++g) {
    first_row[g] = after.first_needed_row(retention(g));
    if (first_row[g] < after.length && first_row[g] < s.tables[g].first_row(B)) {
      return Status(Code::not_found,
                    "cannot move positions: the local layers' window would reach back to row " +
                        std::to_string(first_row[g]) + ", and rows before " +
                        std::to_string(s.tables[g].first_row(B)) +
                        " were dropped when they left it");
    }
  }
  // Blocks with keys that change, and that stay; a shared one is copied first.
  const auto first_changed = [&](size_t g) {
    return std::max({row0 / B, s.tables[g].first_block(), first_row[g] / B});
  };
  const int64_t end_changed = ceil_div(row1, B);
  const auto is_shared = [&](size_t g, int64_t block) {
    return pools[g]->references(s.tables[g].at(block)) > 1;
  };
  const auto counts = [&] {
    Counts wanted(n_groups());
    for (size_t g = 0; g < n_groups(); ++g) {
      for (int64_t i = first_changed(g); i < end_changed; ++i) wanted[g] += is_shared(g, i) ? 1 : 0;
    }
    return wanted;
  };
  Result<Slots> copies = take({.counts = counts, .keep = {{seq}}});
  if (!copies) return copies.error();

  for (size_t g = 0; g < n_groups(); ++g) {
    BlockTable& table = s.tables[g];
    BlockPool& pool = *pools[g];
    size_t next_copy = 0;
    for (int64_t i = first_changed(g); i < end_changed; ++i) {
      if (!is_shared(g, i)) {
        unname(g, table.at(i));
        continue;
      }
      const uint32_t copy = (*copies)[g][next_copy++];
      const uint32_t shared = table.replace(i, copy);
      std::memcpy(pool.memory(copy), pool.memory(shared),
                  static_cast<size_t>(pool.block_bytes().v));
      drop(g, shared);
    }
    const int64_t begin = std::max({row0, table.first_row(B), first_changed(g) * B});
    for (int64_t row = begin; row < row1; ++row) {
      rotate_row(pool.group(), pool.memory(table.at(row / B)), static_cast<int>(row % B),
                 s.position_of(row), after.position_of(row), rotator);
    }
  }
  s.positions = std::move(after.positions);
  s.exact_rows = after.exact_rows;
  s.is_inexact = true;
  forget_name(s);
  trim(s);
  for (size_t g = 0; g < n_groups(); ++g) seal_full(s, g, 0);
  touch(s);
  return {};
}

Status KvCache::seq_add(SeqId seq, int64_t p0, int64_t p1, int64_t delta,
                        const KeyRotator& rotator) {
  const Sequence& s = impl_->change(seq);
  const RowRange rows = rows_of(s, p0, p1);
  if (rows.begin == rows.end || delta == 0) return {};
  if (delta > kMaxPosition || delta < -kMaxPosition) {
    return Status(Code::invalid_input, "cannot move positions by " + std::to_string(delta));
  }
  std::vector<int64_t> moved = all_positions(s);
  for (int64_t row = rows.begin; row < rows.end; ++row) moved[static_cast<size_t>(row)] += delta;
  return impl_->move_positions(seq, rows.begin, rows.end, std::move(moved), rotator);
}

Status KvCache::seq_div(SeqId seq, int64_t p0, int64_t p1, int64_t d, const KeyRotator& rotator) {
  const Sequence& s = impl_->change(seq);
  const RowRange rows = rows_of(s, p0, p1);
  if (d < 1) {
    return Status(Code::invalid_input, "cannot divide positions by " + std::to_string(d));
  }
  if (rows.begin == rows.end || d == 1) return {};
  std::vector<int64_t> moved = all_positions(s);
  for (int64_t row = rows.begin; row < rows.end; ++row) moved[static_cast<size_t>(row)] /= d;
  return impl_->move_positions(seq, rows.begin, rows.end, std::move(moved), rotator);
}

Status KvCache::seq_cp(SeqId from, SeqId to, int64_t p0, int64_t p1) {
  const Sequence& source = impl_->change(from);
  Sequence& target = impl_->change(to);
  if (from == to) return {};
  const RowRange rows = rows_of(source, p0, p1);
  if (rows.begin != 0 || rows.end != source.length) {
    return Status(Code::unsupported,
                  "a part of a sequence cannot be copied; copy it whole and remove the rest");
  }
  // `to` may be evictable, but it must outlive the fork that replaces its content.
  const bool was_evictable = std::exchange(target.is_evictable, false);
  Result<Sequence> copy = impl_->fork(from);
  target.is_evictable = was_evictable;
  if (!copy) return copy.error();
  impl_->drop_all(target);
  copy->is_evictable = was_evictable;
  target = std::move(*copy);
  return {};
}

void KvCache::seq_keep(SeqId seq) {
  impl_->change(seq);
  std::vector<SeqId> others;
  for (const auto& [id, s] : impl_->sequences) {
    if (id != seq) others.push_back(id);
  }
  for (const SeqId id : others) release(id);
}

int64_t KvCache::seq_pos_min(SeqId seq) const {
  const Sequence& s = impl_->at(seq);
  if (s.length == 0) return -1;
  int64_t row = 0;
  for (const BlockTable& table : s.tables) {
    row = std::max(row, table.first_row(impl_->block_tokens()));
  }
  return row < s.length ? s.position_of(row) : s.next_position();
}

int64_t KvCache::seq_pos_max(SeqId seq) const { return impl_->at(seq).next_position() - 1; }

}  // namespace weir

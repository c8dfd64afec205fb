#include <cstring>
#include <string>
#include <utility>

#include "kv/kv_cache_impl.h"

namespace weir {

// Whether every group still has what the query after the first n rows reads.
bool KvCache::Impl::can_cut(const Sequence& s, int64_t n) const {
  for (size_t g = 0; g < n_groups(); ++g) {
    const int64_t needed = s.first_needed_row_at(retention(g), n);
    const bool reads_nothing = needed == n && n % block_tokens() == 0;
    if (!reads_nothing && needed < s.tables[g].first_row(block_tokens())) return false;
  }
  return true;
}

int64_t KvCache::Impl::min_rewind(const Sequence& s) const {
  // What a query reads begins later the later it comes, so the lengths whose window is held are
  // those from some length on.
  const auto holds_window = [&](int64_t n) {
    for (size_t g = 0; g < n_groups(); ++g) {
      const int64_t needed = s.first_needed_row_at(retention(g), n);
      if (needed < s.tables[g].first_row(block_tokens())) return false;
    }
    return true;
  };
  int64_t low = std::min<int64_t>(1, s.length), high = s.length;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (holds_window(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

int64_t KvCache::min_rewind(SeqId seq) const { return impl_->min_rewind(impl_->at(seq)); }

Status KvCache::rewind(SeqId seq, int64_t n) { return impl_->rewind(seq, n); }

Status KvCache::Impl::rewind(SeqId seq, int64_t n) {
  Sequence& s = change(seq);
  const int64_t B = block_tokens();
  if (n < 0 || n > s.length) {
    return Status(Code::invalid_input, "cannot rewind a sequence of " + std::to_string(s.length) +
                                           " tokens to " + std::to_string(n));
  }
  if (n == s.length) return {};
  if (n == 0) {
    drop_all(s);
    touch(s);
    return {};
  }
  if (s.is_replaying()) return still_replaying(s);
  if (!can_cut(s, n)) {
    return Status(Code::not_found, "cannot rewind to " + std::to_string(n) +
                                       " tokens: the local layers no longer hold the window "
                                       "before; the shortest length that is left is " +
                                       std::to_string(min_rewind(s)));
  }
  // The last block becomes open; one that others read too must be copied first. Where a later block
  // is this sequence's own, that one serves as the copy and no memory is needed.
  const int64_t last = n / B;
  const auto own_spare = [&](size_t g) -> int64_t {
    for (int64_t i = s.tables[g].end_block() - 1; i > last; --i) {
      if (pools[g]->references(s.tables[g].at(i)) == 1) return i;
    }
    return -1;
  };
  const auto must_copy = [&](size_t g) {
    const BlockTable& table = s.tables[g];
    return n % B != 0 && pools[g]->references(table.at(last)) > 1;
  };
  const auto counts = [&] {
    Counts needed(n_groups());
    for (size_t g = 0; g < n_groups(); ++g) needed[g] = must_copy(g) && own_spare(g) < 0 ? 1 : 0;
    return needed;
  };
  Result<Slots> copies =
      take({.counts = counts, .keep = {{seq}}, .growth = growth_of(s, counts())});
  if (!copies) return copies.error();

  for (size_t g = 0; g < n_groups(); ++g) {
    BlockTable& table = s.tables[g];
    if (must_copy(g)) {
      const uint32_t shared = table.at(last);
      if ((*copies)[g].empty()) {
        const int64_t spare = own_spare(g);
        const uint32_t own_slot = table.replace(spare, shared);
        unname(g, own_slot);
        table.replace(last, own_slot);
      } else {
        own(g, (*copies)[g].front(), payer(s));
        table.replace(last, (*copies)[g].front());
      }
      std::memcpy(pools[g]->memory(table.at(last)), pools[g]->memory(shared),
                  static_cast<size_t>(pools[g]->block_bytes().v));
      if ((*copies)[g].empty()) continue;
      drop(g, shared);
    }
  }
  s.length = n;
  if (s.is_inexact) {
    s.positions.resize(static_cast<size_t>(n));
    if (n <= s.exact_rows) {
      s.positions.clear();
      s.is_inexact = false;
    }
  }
  trim(s);
  for (size_t g = 0; g < n_groups() && n % B != 0; ++g) reopen(g, s.tables[g].at(last));
  cut_path(s, n);
  touch(s);
  return {};
}

}  // namespace weir

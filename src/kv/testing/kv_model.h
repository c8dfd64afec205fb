#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kv/testing/kv_model_state.h"

namespace weir {

// The smallest thing that knows what a KV store must hold: a list of rows per sequence. Applies
// each operation to itself and to a KvCache, and compares everything after each. It lists positions
// and does no window arithmetic of its own.
class KvModel : public KvModelState {
 public:
  explicit KvModel(const OpStream& stream) : KvModelState(stream) {}

  // What went wrong first, or nothing.
  std::optional<std::string> run(const std::vector<Op>& ops) {
    for (const Op& op : ops) {
      budget_.reset_peak();
      const int64_t most = std::max(budget_.limit().v, budget_.used().v);
      observer_.evicted.clear();
      apply(op);
      ++stats_.ops;
      expect(budget_.peak().v <= std::max(most, budget_.limit().v), "passed the limit");
      check();
      if (failure_) return failure_;
    }
    finish();
    return failure_;
  }

 private:
  // --- operations ---
  void apply(const Op& op) {
    const auto& a = op.args;
    if (op.kind == OpKind::create || sequences_.empty()) return create();
    Seq& s = sequences_[a[0] % sequences_.size()];
    switch (op.kind) {
      case OpKind::create:
        return;
      case OpKind::step:
        return step(a, Outcome::all);
      case OpKind::decode:
        return step({a[0], 0, 1, 0xff}, Outcome::all);
      case OpKind::draft:
        return step(a, Outcome::some);
      case OpKind::abort:
        return step(a, Outcome::none);
      case OpKind::rewind:
        return rewind(s, pick_length(s, a));
      case OpKind::fork:
        return fork(s, a[1] % 2 == 0);
      case OpKind::release:
        return release(a[0] % sequences_.size());
      case OpKind::evictable:
        s.is_evictable = a[1] % 3 != 0;
        return cache_->set_evictable(s.id, s.is_evictable);
      case OpKind::budget: {
        const int64_t least = static_cast<int64_t>(config_.groups.size());
        return budget_.set_limit({(least + a[0] % (config_.extents + 3)) * kExtent - a[1] % 700});
      }
      case OpKind::pressure:
        return pressure(a[0] % 3 * 3000 + a[1] % 100);
      case OpKind::fit:
        return fit();
      case OpKind::remove:
        return remove(s, a);
      case OpKind::add:
        return add(s, a);
      case OpKind::divide:
        return divide(s, a);
      case OpKind::copy:
        return copy(s, sequences_[a[1] % sequences_.size()]);
      case OpKind::keep:
        // Rarely: it ends what makes the other operations interesting.
        if (a[1] % 4 != 0) return;
        cache_->seq_keep(s.id);
        sequences_ = {Seq(s)};
        return;
    }
  }

  void create() {
    if (sequences_.size() >= kMaxSequences) return;
    Seq s;
    s.id = cache_->create_sequence();
    s.last_use = ++clock_;
    sequences_.push_back(std::move(s));
  }

  enum class Outcome { all, some, none };
  struct Planned {
    size_t index;  // in sequences_
    StepItem item;
  };

  void step(const std::array<uint16_t, 4>& a, Outcome outcome) {
    const int64_t B = config_.block_tokens;
    const size_t n_items = a[3] == 0xff ? sequences_.size() : 1 + a[3] % 3;
    const std::array<int64_t, 8> lengths = {1, 2, B - 1, B, B + 1, 2 * B + 3, 5 * B, 1 + a[1] % 90};
    std::vector<Planned> planned;
    for (size_t i = 0; i < std::min(n_items, sequences_.size()); ++i) {
      const size_t index = (a[0] + i) % sequences_.size();
      int64_t n = a[3] == 0xff ? 1 : std::max<int64_t>(1, lengths[(a[2] + i) % 8]);
      n = std::min(n, kMaxRows - sequences_[index].length());
      if (n <= 0) continue;
      StepItem item{.seq = sequences_[index].id, .n_tokens = n};
      if (outcome == Outcome::some) item.min_accept = a[1] % (n + 1);
      planned.push_back({index, item});
    }
    if (planned.empty()) return;
    std::vector<StepItem> items;
    for (const Planned& p : planned) items.push_back(p.item);

    const bool fits = budget_.would_fit(cache_->step_need(items));
    Result<Step> step = cache_->plan_step(items);
    settle(step.status(), fits, items);
    if (!step.ok()) return;
    ++stats_.steps;
    // Evictions may have moved the sequences.
    for (Planned& p : planned) p.index = index_of(p.item.seq);
    cache_->check_invariants();
    std::vector<std::vector<Row>> added = compute(planned, *step);
    if (outcome == Outcome::none) {
      if (a[1] % 2 == 0) step->abort();  // else by its destructor
      return;
    }
    std::vector<int64_t> accepted;
    for (const Planned& p : planned) {
      const int64_t sure = p.item.sure(), n = p.item.n_tokens;
      int64_t count = outcome == Outcome::all ? n : sure + a[2] % (n - sure + 1);
      if (outcome == Outcome::some && a[1] % 7 == 0) count = 0;
      accepted.push_back(count);
    }
    step->commit(accepted);
    for (size_t i = 0; i < planned.size(); ++i) {
      Seq& s = sequences_[planned[i].index];
      added[i].resize(static_cast<size_t>(accepted[i]));
      s.rows.insert(s.rows.end(), added[i].begin(), added[i].end());
      rules_.drop_unread(s);
      s.last_use = ++clock_;
    }
  }

  // Writes the new rows through the tables and reads what their queries see.
  std::vector<std::vector<Row>> compute(const std::vector<Planned>& planned, const Step& step) {
    const KvLayout& layout = cache_->layout();
    Scratch scratch(layout, step);
    std::vector<std::vector<Row>> added;
    for (size_t i = 0; i < planned.size(); ++i) {
      Seq all = sequences_[planned[i].index];
      const int64_t n_past = all.length();
      const std::vector<int64_t> positions = step.positions(i);
      for (int64_t t = 0; t < planned[i].item.n_tokens; ++t) {
        Row row;
        row.content = {extend_hash(all.rows.empty() ? 0 : all.rows.back().content.prefix, ++token_),
                       all.next_position()};
        row.is_changed = !all.rows.empty() && all.rows.back().is_changed;
        row.is_held.fill(true);
        expect(positions[static_cast<size_t>(t)] == row.content.position, "wrong position");
        all.rows.push_back(row);
      }
      for (size_t g = 0; g < layout.groups.size(); ++g) {
        compute_group(layout.groups[g], step.table(i, g), all, n_past, scratch);
      }
      added.emplace_back(all.rows.begin() + n_past, all.rows.end());
    }
    return added;
  }

  void compute_group(const KvGroup& group, const StepTable& table, const Seq& all, int64_t n_past,
                     Scratch& scratch) {
    const size_t g = static_cast<size_t>(group.id);
    expect(table.n_past == n_past && table.n_new == all.length() - n_past, "wrong table length");
    for (int64_t row = n_past; row < all.length(); ++row) {
      std::byte* block = scratch.block(group, table, row);
      if (!block) return expect(false, "no block for a new row");
      write_fingerprint(group, block, static_cast<int>(row % group.block_tokens), all.print(row));
    }
    int64_t first = all.length();
    for (int64_t query = n_past; query < all.length(); ++query) {
      int64_t begin = rules_.first_read(all, g, query);
      const size_t t = static_cast<size_t>(query - n_past);
      const int64_t says = table.first_visible_row.empty() ? first_visible(group.retention, query)
                                                           : table.first_visible_row[t];
      // A query reads itself, if nothing else.
      expect(says == std::min(begin, query), "wrong first visible row");
      first = std::min(first, begin);
    }
    for (int64_t row = first; row < all.length(); ++row) {
      std::byte* block = scratch.block(group, table, row);
      if (!block) return expect(false, "a visible row has no block");
      expect(
          has_fingerprint(group, block, static_cast<int>(row % group.block_tokens), all.print(row)),
          "a visible row holds something else");
    }
  }

  void rewind(Seq& s, int64_t n) {
    const bool can = rules_.can_cut(s, n);
    const int64_t before = s.length();
    if (n == before) return expect(cache_->rewind(s.id, n).ok(), "rewind to the end failed");
    const SeqId id = s.id;
    const Status status = cache_->rewind(id, n);
    if (!can) {
      ++stats_.not_held;
      return expect(status.code() == Code::not_found, "rewound to a lost window");
    }
    settle(status, false, {{{id, 1}}});
    if (status.ok()) cut(sequences_[index_of(id)], n);
  }
  void cut(Seq& s, int64_t n) {
    s.rows.resize(static_cast<size_t>(n));
    rules_.drop_unread(s);
    s.last_use = ++clock_;
  }

  // Half of the forks are checkpoints.
  void fork(Seq& s, bool is_checkpoint) {
    if (sequences_.size() >= kMaxSequences) return;
    has_forked_ = true;
    const SeqId id = s.id;
    s.last_use = ++clock_;
    const Result<SeqId> forked = cache_->fork(id);
    settle(forked.status(), false, {{{id, 1}}});
    if (!forked.ok()) return;
    Seq copy = sequences_[index_of(id)];
    copy.id = *forked;
    copy.is_evictable = is_checkpoint;
    cache_->set_evictable(*forked, is_checkpoint);
    copy.last_use = ++clock_;
    sequences_.push_back(std::move(copy));
  }

  void release(size_t index) {
    cache_->release(sequences_[index].id);
    sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(index));
  }

  void pressure(int64_t bytes) {
    pressure_ = Reservation();
    Result<Reservation> taken = budget_.reserve({bytes}, Tag::staging_in);
    if (taken.ok()) pressure_ = std::move(*taken);
  }

  void fit() {
    cache_->fit_to_budget();
    settle({}, false, {});
    const bool has_candidate = std::any_of(sequences_.begin(), sequences_.end(),
                                           [](const Seq& s) { return s.is_evictable; });
    expect(!has_candidate || budget_.used() <= budget_.limit(), "kept more than the limit");
  }

  void remove(Seq& s, const std::array<uint16_t, 4>& a) {
    if (s.rows.empty()) return;
    const int64_t p0 = a[1] % (s.next_position() + 1);
    const int64_t p1 = a[3] % 5 == 0 ? -1 : p0 + a[2] % 40;
    const auto [row0, row1] = s.rows_in(p0, p1);
    const SeqId id = s.id;
    const bool can = row1 < s.length() || row0 == row1 || rules_.can_cut(s, row0);
    const Status status = cache_->seq_rm(id, p0, p1);
    if (!can) return expect(status.code() == Code::not_found, "removed to a lost window");
    settle(status, row0 == row1, {{{id, 1}}});
    if (!status.ok() || row0 == row1) return;
    Seq& now = sequences_[index_of(id)];
    if (row1 == now.length()) return cut(now, row0);
    now.rows.erase(now.rows.begin() + row0, now.rows.begin() + row1);
    changed(now, row0);
  }

  void add(Seq& s, const std::array<uint16_t, 4>& a) {
    if (s.rows.empty()) return;
    const int64_t p0 = a[1] % (s.next_position() + 1);
    const int64_t p1 = a[3] % 4 != 0 ? -1 : p0 + a[2] % 40;
    const int64_t delta = a[2] % 30 - 12;
    move(
        s, p0, p1, delta == 0, [&](int64_t p) { return p + delta; },
        [&](SeqId id) { return cache_->seq_add(id, p0, p1, delta, rotator_); });
  }

  void divide(Seq& s, const std::array<uint16_t, 4>& a) {
    if (s.rows.empty()) return;
    const int64_t p0 = a[1] % (s.next_position() + 1);
    const int64_t p1 = a[3] % 2 == 0 ? -1 : p0 + a[2] % 40;
    const int64_t d = 1 + a[2] % 4;
    move(
        s, p0, p1, d == 1, [&](int64_t p) { return p / d; },
        [&](SeqId id) { return cache_->seq_div(id, p0, p1, d, rotator_); });
  }

  template <typename NewPosition, typename Call>
  void move(Seq& s, int64_t p0, int64_t p1, bool is_nothing, NewPosition new_position, Call call) {
    const auto [row0, row1] = s.rows_in(p0, p1);
    Seq moved = s;
    for (int64_t row = row0; row < row1; ++row) {
      int64_t& position = moved.rows[static_cast<size_t>(row)].content.position;
      position = new_position(position);
    }
    bool ascends = true, is_held = true;
    for (int64_t row = 0; row < s.length(); ++row) {
      const int64_t before = row > 0 ? moved.print(row - 1).position : 0;
      ascends = ascends && moved.print(row).position >= before;
    }
    for (size_t g = 0; g < config_.groups.size() && ascends; ++g) {
      const int64_t read = rules_.first_read(moved, g, s.length());
      if (read < s.length() && read < rules_.first_held(s, g)) is_held = false;
    }
    const SeqId id = s.id;
    const Status status = call(id);
    if (!ascends) return expect(status.code() == Code::invalid_input, "positions do not ascend");
    if (!is_held) {
      ++stats_.not_held;
      return expect(status.code() == Code::not_found, "moved to a lost window");
    }
    settle(status, row0 == row1 || is_nothing, {{{id, 1}}});
    if (!status.ok() || row0 == row1 || is_nothing) return;
    ++stats_.shifted;
    Seq& now = sequences_[index_of(id)];
    now.rows = moved.rows;
    changed(now, row0);
  }

  void changed(Seq& s, int64_t row0) {
    for (int64_t row = row0; row < s.length(); ++row) {
      s.rows[static_cast<size_t>(row)].is_changed = true;
    }
    rules_.drop_unread(s);
    s.last_use = ++clock_;
  }

  void copy(Seq& from, Seq& to) {
    has_forked_ = true;
    const SeqId from_id = from.id, to_id = to.id;
    if (from_id != to_id) from.last_use = ++clock_;
    const Status status = cache_->seq_cp(from_id, to_id, -1, -1);
    settle(status, from_id == to_id, {{{from_id, 1}, {to_id, 1}}});
    if (!status.ok() || from_id == to_id) return;
    Seq& target = sequences_[index_of(to_id)];
    const bool was_evictable = target.is_evictable;
    target = sequences_[index_of(from_id)];
    target.id = to_id;
    target.is_evictable = was_evictable;
    target.last_use = ++clock_;
  }

  void finish() {
    pressure_ = Reservation();
    while (!sequences_.empty()) release(sequences_.size() - 1);
    cache_->check_invariants();
    expect(budget_.used().v == 0 && memory_.committed() == 0, "leaked");
    expect(observer_.taken == observer_.freed, "taken and freed blocks differ");
  }
};

}  // namespace weir

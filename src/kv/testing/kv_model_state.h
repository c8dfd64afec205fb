#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "geometry/window.h"
#include "kv/kv_cache.h"
#include "kv/testing/fake_memory.h"
#include "kv/testing/fingerprints.h"
#include "kv/testing/op_stream.h"
#include "kv/testing/row_rules.h"

namespace weir {

// The state of a KvModel: the store under test, the rows it must hold, and what is compared after
// every operation. Lists positions and does no window arithmetic of its own.
class KvModelState {
 public:
  struct Stats {
    int64_t ops = 0, steps = 0, refused = 0, evicted = 0, not_held = 0, shifted = 0;
    Stats& operator+=(const Stats& o) {
      ops += o.ops, steps += o.steps, refused += o.refused;
      evicted += o.evicted, not_held += o.not_held, shifted += o.shifted;
      return *this;
    }
  };

  const Stats& stats() const { return stats_; }

 protected:
  using Row = ModelRow;
  using Seq = ModelSequence;

  static constexpr int64_t kExtent = 4096;
  static constexpr size_t kMaxSequences = 10;
  static constexpr int64_t kMaxRows = 300;

  struct Observer final : KvObserver {
    std::vector<SeqId> evicted;
    int64_t taken = 0, freed = 0;
    void on_evicted(const EvictionCandidate& unit) override { evicted.push_back(unit.seq); }
    void on_block_taken(int, uint32_t) override { ++taken; }
    void on_block_freed(int, uint32_t) override { ++freed; }
  };

  explicit KvModelState(const OpStream& stream) : config_(decode_config(stream.config)) {
    budget_.set_limit({config_.extents * kExtent});
    KvLayout layout = fingerprint_layout(config_.block_tokens, config_.groups);
    auto cache = KvCache::create(std::move(layout), budget_, memory_,
                                 {.address_space = {(config_.extents + 6) * kExtent},
                                  .max_context = 0,
                                  .extent = {kExtent},
                                  .poison = true});
    WEIR_CHECK(cache.ok());
    cache_ = std::move(*cache);
    cache_->add_observer(&observer_);
  }

  void expect(bool is_true, const std::string& what) {
    if (!is_true && !failure_) failure_ = what;
  }

  // --- judging ---
  // After an operation that may evict or be refused: only evictable sequences that it does not work
  // on went, the least recently used first, and none in vain.
  void settle(const Status& status, bool must_succeed, const std::vector<StepItem>& working_on) {
    for (const SeqId gone : observer_.evicted) {
      ++stats_.evicted;
      const size_t index = index_of(gone);
      if (index == sequences_.size()) return expect(false, "evicted an unknown sequence");
      for (const Seq& s : sequences_) {
        const bool is_candidate =
            s.is_evictable && std::none_of(working_on.begin(), working_on.end(),
                                           [&](const StepItem& i) { return i.seq == s.id; });
        if (s.id == gone) expect(is_candidate, "evicted a sequence in use");
        if (is_candidate) {
          expect(sequences_[index].last_use <= s.last_use, "evicted one used later");
        }
      }
      sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(index));
    }
    expect(status.ok() || observer_.evicted.empty(), "evicted in vain");
    observer_.evicted.clear();
    if (status.ok()) return;
    ++stats_.refused;
    expect(status.code() == Code::over_budget, "failed otherwise: " + status.message());
    expect(!must_succeed, "refused what fits: " + status.message());
  }

  void check() {
    cache_->check_invariants();
    expect(!rotator_.is_wrong(), "a key was rotated from another position");
    expect(memory_.committed() + pressure_.size().v == budget_.used().v,
           "accounts and memory differ");
    const KvLayout& layout = cache_->layout();
    Bytes most;
    for (const Seq& s : sequences_) {
      if (!cache_->exists(s.id)) return expect(false, "a sequence is gone");
      check_sequence(s);
      for (size_t g = 0; g < layout.groups.size(); ++g) {
        most += rules_.blocks_held(s, g) * layout.groups[g].block_bytes;
      }
    }
    const Bytes resident = cache_->usage().resident();
    expect(has_forked_ ? resident <= most : resident == most, "resident bytes differ");
  }

  void check_sequence(const Seq& s) {
    expect(cache_->length(s.id) == s.length(), "wrong length");
    expect(cache_->next_position(s.id) == s.next_position(), "wrong next position");
    expect(cache_->seq_pos_max(s.id) == s.next_position() - 1, "wrong pos_max");
    expect(cache_->is_inexact(s.id) == (!s.rows.empty() && s.rows.back().is_changed),
           "wrong is_inexact");
    int64_t first_common = 0;
    for (size_t g = 0; g < config_.groups.size(); ++g) {
      const int64_t held = rules_.first_held(s, g);
      first_common = std::max(first_common, held);
      const KvGroup& group = cache_->layout().groups[g];
      const StepTable table = cache_->held_table(s.id, g);
      for (int64_t row = held; row < s.length(); ++row) {
        const int64_t index = (row - table.first_row) / group.block_tokens;
        if (row < table.first_row || index >= static_cast<int64_t>(table.blocks.size())) {
          return expect(false, "a held row has no block");
        }
        expect(has_fingerprint(group, table.blocks[static_cast<size_t>(index)].memory,
                               static_cast<int>(row % group.block_tokens), s.print(row)),
               "a held row holds something else");
      }
    }
    const int64_t pos_min = s.rows.empty()              ? -1
                            : first_common < s.length() ? s.print(first_common).position
                                                        : s.next_position();
    expect(cache_->seq_pos_min(s.id) == pos_min, "wrong pos_min");

    const int64_t least = cache_->min_rewind(s.id);
    expect(least <= s.length() && (least == s.length() || rules_.can_cut(s, least)),
           "wrong min_rewind");
    // The one before cannot be reached, unless nothing is read there.
    if (least > 1) {
      bool reads_lost = false;
      for (size_t g = 0; g < config_.groups.size(); ++g) {
        reads_lost = reads_lost || rules_.first_read(s, g, least - 1) < rules_.first_held(s, g);
      }
      expect(reads_lost, "min_rewind is not the least");
    }
  }

  // --- helpers ---
  size_t index_of(SeqId id) const {
    const auto found = std::find_if(sequences_.begin(), sequences_.end(),
                                    [&](const Seq& s) { return s.id == id; });
    return static_cast<size_t>(found - sequences_.begin());
  }
  // Mostly near the end, where windows are still held.
  static int64_t pick_length(const Seq& s, const std::array<uint16_t, 4>& a) {
    if (a[1] % 3 == 0) return a[2] % (s.length() + 1);
    return std::max<int64_t>(0, s.length() - a[2] % 24);
  }

  const StreamConfig config_;
  const RowRules rules_{config_};
  Stats stats_;
  std::optional<std::string> failure_;
  FakeMemory memory_;
  Budget budget_{{0}};
  Observer observer_;
  FingerprintRotator rotator_;
  Reservation pressure_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Seq> sequences_;
  bool has_forked_ = false;
  uint64_t clock_ = 0;
  uint64_t token_ = 0;
};

}  // namespace weir

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "geometry/kv_layout.h"
#include "kv/budget.h"
#include "kv/kv_memory.h"
#include "kv/step.h"
#include "weir/kv_hooks.h"

namespace weir {

// Turns a stored key into the key of another position. Given by the model (rope); kv/ knows only
// that it acts on one head's row of one layer.
class KeyRotator {
 public:
  virtual ~KeyRotator() = default;
  // Rotates `row` (k_dim floats of `layer`) from position `from` to position `to`, in place.
  virtual void rotate(int layer, int64_t from, int64_t to, std::span<float> row) const = 0;
};

struct KvCacheOptions {
  // Address space of each pool covers this many bytes of blocks (rounded up to an extent); pages
  // are committed on demand. Usually the budget's limit.
  Bytes address_space{};
  // Largest context of the model, for pool_extent(); 0 if unknown.
  int64_t max_context = 0;
  // Memory is committed and returned in units of this, a multiple of 4 KiB. 0: pool_extent().
  Bytes extent{};
  // Fills blocks with ones (NaN in every KV type) when they are taken and when they are freed,
  // so that a read of a row nobody wrote shows. For tests.
  bool poison = false;
};

// Bytes in use, by layer kind. `global` + `local` is what plan() predicts to the byte.
struct KvUsage {
  Bytes global;  // blocks of global groups, each counted once however many share it
  Bytes local;
  Bytes headroom;  // new local blocks of the step under way
  Bytes committed_free;
  Bytes resident() const { return global + local + headroom; }
};

// Block pools, sequences and forks under one budget. One thread owns it; no locks inside.
class KvCache {
 public:
  // `budget` and `memory` must outlive the cache. Errors: io_error; invalid_input
  // for an extent that is not a multiple of 4 KiB.
  static Result<std::unique_ptr<KvCache>> create(KvLayout layout, Budget& budget, KvMemory& memory,
                                                 const KvCacheOptions& options);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvLayout& layout() const;

  // --- sequences ---------------------------------------------------------------------------
  SeqId create_sequence();
  // A second sequence over the same blocks; copies only the open ones. Errors: over_budget.
  Result<SeqId> fork(SeqId seq);
  void release(SeqId seq);
  int64_t length(SeqId seq) const;  // tokens (rows) committed
  // Position that the next token gets; == length unless the sequence was shifted.
  int64_t next_position(SeqId seq) const;
  // True once seq_rm of a middle part, seq_add or seq_div made keys that no prefix produces.
  bool is_inexact(SeqId seq) const;

  // --- steps ----------------------------------------------------------------------------------
  // Reserves and takes what the step needs, evicting if the policy allows. One step at a time.
  // Errors: over_budget (nothing changed).
  Result<Step> plan_step(std::span<const StepItem> items);
  // Bytes that plan_step would have to reserve for `items` right now: the memory its blocks commit.
  Bytes step_need(std::span<const StepItem> items) const;

  // What `seq` holds in `group` between steps: a table with n_new == 0. Rows before first_held_row
  // have no content.
  StepTable held_table(SeqId seq, size_t group) const;
  int64_t first_held_row(SeqId seq, size_t group) const;

  // --- rewinding, and sequence operations with llama.cpp's meaning ----------------------------
  // Shortest length to which `seq` can be cut back exactly right now, apart from 0: the local
  // groups must still hold the window before the new end. Every longer length can be reached too.
  int64_t min_rewind(SeqId seq) const;
  // Cuts `seq` back to n tokens. All or nothing. Succeeds from min_rewind on, and at earlier block
  // boundaries before which no local layer reads anything (chunk ends). Errors: invalid_input if n
  // is negative or over the length, not_found if a local group no longer holds the window before n
  // (the message names min_rewind), over_budget for a block's copy.
  Status rewind(SeqId seq, int64_t n);

  // Positions [p0, p1); negative p0 means 0, negative p1 means the end. A tail is a rewind; a
  // middle part moves later rows down, shared ones into copies, and makes the sequence inexact.
  // Positions of the rows that stay do not change.
  Status seq_rm(SeqId seq, int64_t p0, int64_t p1);
  // Makes `to` a fork of `from`'s whole content (releasing what `to` held). p0, p1 must cover it.
  Status seq_cp(SeqId from, SeqId to, int64_t p0, int64_t p1);
  void seq_keep(SeqId seq);  // releases every other sequence
  // Adds `delta` to the positions in [p0, p1), rotating keys (shared ones in unnamed copies). Equal
  // neighbours count as ascending. All or nothing. Errors: invalid_input if positions would no
  // longer ascend or become negative, not_found if rows would come into a local window that were
  // dropped when they left it, over_budget for the copies.
  Status seq_add(SeqId seq, int64_t p0, int64_t p1, int64_t delta, const KeyRotator& rotator);
  // Divides the positions in [p0, p1) by d > 1, likewise.
  Status seq_div(SeqId seq, int64_t p0, int64_t p1, int64_t d, const KeyRotator& rotator);
  // Smallest position from which on every group holds all rows; -1 when empty.
  int64_t seq_pos_min(SeqId seq) const;
  int64_t seq_pos_max(SeqId seq) const;  // largest position; -1 when empty

  // --- keeping and giving way -----------------------------------------------------------------
  // A sequence marked evictable (a checkpoint) may be released when a reservation does not fit.
  // One that the operation under way works on is never released.
  void set_evictable(SeqId seq, bool evictable);
  // Evicts while more than the budget's limit is used. Call it after lowering the limit.
  void fit_to_budget();
  bool exists(SeqId seq) const;
  void set_eviction_policy(EvictionPolicy* policy);  // not owned; null: least recently used
  void add_observer(KvObserver* observer);           // not owned

  KvUsage usage() const;
  // The blocks that one sequence holds, shared ones counted in full: plan(length) to the byte.
  KvUsage usage_of(SeqId seq) const;
  // Aborts if an invariant of the store does not hold. Tests call it after every operation.
  void check_invariants() const;

 private:
  friend class Step;
  struct Impl;
  explicit KvCache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir

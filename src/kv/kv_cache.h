#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "geometry/kv_layout.h"
#include "kv/budget.h"
#include "kv/kv_memory.h"
#include "kv/kv_tier.h"
#include "kv/prefix_match.h"
#include "kv/restart.h"
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
  // Empty extents of each group that stay committed, so that a store which shrinks and grows does
  // not ask the system each time. The first to go when memory is needed.
  int64_t spare_extents = 0;
  // Prefixes remembered after they were evicted, eight bytes each; for the reason of a miss.
  int64_t ghosts = 16384;
  // Compares the bytes of a block with those of the equal one that is known already.
  bool compare_duplicates = false;
  // For tests: bits of the prefix index's hashes that are used.
  uint64_t hash_mask = UINT64_MAX;
};

// Bytes in use, by layer kind. `global` + `local` is what plan() predicts to the byte.
struct KvUsage {
  Bytes global;  // blocks of global groups, each counted once however many share it
  Bytes local;
  Bytes headroom;     // new local blocks of the step under way
  Bytes idle;         // global blocks that no sequence holds
  Bytes restart;      // local blocks that only restart points keep
  Bytes staging;      // blocks on their way from and to a tier, those of sequences left out
  Bytes metadata;     // nodes of the prefix index, and what it remembers of evicted ones
  Bytes tier_memory;  // for operations of the tier; what it takes for itself left out
  Bytes committed_free;
  // Of sequences.
  Bytes resident() const { return global + local + headroom; }
  // Blocks held for any purpose.
  Bytes held_global() const { return global + idle; }
  Bytes held_local() const { return local + headroom + restart; }
};

// Counts since the store was made.
struct KvCounters {
  int64_t evicted_sequences = 0;
  int64_t evicted_restarts = 0;  // restart points inside a chain
  int64_t evicted_tails = 0;
  int64_t thinned_restarts = 0;
  int64_t duplicates = 0;         // blocks computed that were known already
  int64_t duplicates_differ = 0;  // of them, those whose bytes differ (if they are compared)
  int64_t healed_tokens = 0;
};

enum class PinId : uint64_t {};

// What is known of one chain of tokens.
struct ChainBytes {
  int64_t tokens = 0;  // full blocks known
  Bytes unique;        // that dropping it would free
  Bytes shared;        // the rest
  struct Point {
    int64_t tokens = 0;
    RestartKind kind{};
    Bytes unique;  // that only this point keeps
  };
  std::vector<Point> points;  // restart points, ascending
};

// Block pools, sequences, forks and the index of prefixes under one budget. One thread owns it; no
// locks inside.
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

  // --- namespaces -----------------------------------------------------------------------------
  // Namespace 0 exists from the start.
  NamespaceId open_namespace();
  // Drops what is idle in it; the rest goes with its last sequence. Not for new sequences any more.
  void close_namespace(NamespaceId id);
  // The needs of others never evict it below `floor`; above `ceiling` (0: none) it evicts its own,
  // then is refused.
  void set_quota(NamespaceId id, Bytes floor, Bytes ceiling);
  Bytes bytes_of(NamespaceId id) const;  // of blocks; idle ones and restart points included

  // --- prefixes -------------------------------------------------------------------------------
  // How much of `prompt` is known. One pass, O(blocks). Chooses the restart boundary, or the one
  // with healing, that leaves the fewest tokens to compute. Changes nothing.
  PrefixMatch match(NamespaceId id, std::span<const int32_t> prompt) const;
  // What eviction learns from: a request for this prompt has come, before anything is done for it;
  // and one ends, before its sequence is released.
  void note_return(NamespaceId id, std::span<const int32_t> prompt);
  void note_leave(SeqId seq);
  // A named sequence over the blocks of `match`, which must be of this prompt. Takes no memory.
  // With healing the sequence starts at match.first_computed(), and steps up to
  // replay_end() == match.tokens rebuild local rows; they read the stored global ones and must not
  // cross replay_end(). Rewinds and forks have to wait until then. Errors: not_found if something
  // of it is gone meanwhile.
  Result<SeqId> resume(NamespaceId id, std::span<const int32_t> prompt, const PrefixMatch& match);
  // For tests: asked by resume() of a match that is not empty, which then fails with its error.
  void set_resume_fault(std::function<Status()> fault);
  // Where the rebuilding of `seq` ends; 0 when it is not being rebuilt.
  int64_t replay_end(SeqId seq) const;

  // Keeps what is needed to restart at the present length of `seq`: references, no copies. False
  // if that is no block boundary, or the sequence is unnamed or being rebuilt.
  bool mark_restart(SeqId seq, RestartKind kind);
  // With `keep`, the sequence always keeps the latest block boundary behind it as a restart point;
  // takes at most one block more per local group. Only for named sequences.
  void keep_latest(SeqId seq, bool keep);
  // Most restart points on one chain, and the largest gap between two that thinning may leave (0:
  // none).
  void set_restart_limit(int64_t points);
  void set_rewind_bound(int64_t tokens);

  // Chains of tokens whose end is evicted last. Errors: not_found if no full block is known,
  // over_budget if pins would take more than their share of the budget.
  Result<PinId> pin(NamespaceId id, std::span<const int32_t> tokens);
  void unpin(PinId pin);  // nothing if it was evicted
  bool is_pinned(PinId pin) const;
  void set_pin_share(double share);  // of the budget's limit; 0.5 at first
  // Frees what only this chain keeps from token `from` on. Returns the bytes.
  Bytes drop(NamespaceId id, std::span<const int32_t> tokens, int64_t from);
  // `unique` is what drop() of the same arguments would free.
  ChainBytes bytes_of(NamespaceId id, std::span<const int32_t> tokens, int64_t from = 0) const;

  // --- a tier below RAM (docs/tiers.md) ---------------------------------------------------------
  // Once, before anything is named. Namespaces with a salt take part, and find what namespaces of
  // the same salt left, in other processes too. Errors: over_budget.
  Status set_tier(KvTierOptions options);
  void set_tier_salt(NamespaceId id, std::string_view salt);
  // Takes in what the tier has finished. Never waits; not during a step, nor by itself: call it
  // between steps.
  void poll_tier();
  bool has_tier_work() const;  // something is under way
  // Starts to write what would be evicted next, until `ready` bytes could be freed at once, with at
  // most `most` bytes of blocks on their way at a time. Those are pinned until they are written.
  void write_behind(Bytes most);
  // Starts to write all that is known of a chain, as far as the tier takes it. True once it has it
  // all; call it again, after poll_tier, while it is false.
  bool demote(NamespaceId id, std::span<const int32_t> tokens);

  // Looks into the tier for what is missing of `prompt`, and reads it into blocks of the index,
  // evicting if the policy allows. Nothing if there is nothing to ask. A load must be ended, before
  // its namespace is closed.
  std::optional<LoadId> start_load(NamespaceId id, std::span<const int32_t> prompt);
  LoadState load_state(LoadId load) const;
  // Ends a load, also one that is under way, and matches its prompt. The reason is load_failed if
  // the tier promised more than is there now.
  PrefixMatch end_load(LoadId load);
  const TierCounters& tier_counters() const;

  // --- sequences ---------------------------------------------------------------------------
  // Unnamed: nothing of it is ever shared but by fork().
  SeqId create_sequence();
  // Named: its blocks enter the index of its namespace as they fill, and stay when it is released.
  // It is unnamed once it is inexact.
  SeqId create_sequence(NamespaceId id);
  bool is_named(SeqId seq) const;
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
  // Errors: over_budget (nothing changed), invalid_input if an item crosses replay_end().
  Result<Step> plan_step(std::span<const StepItem> items);
  // Bytes that plan_step would have to reserve for `items` right now: the memory its blocks commit,
  // and the nodes of the index.
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
  // One that the operation under way works on is never released. Only for unnamed ones.
  void set_evictable(SeqId seq, bool evictable);
  // Evicts while more than the budget's limit is used. Call it after lowering the limit.
  void fit_to_budget();
  bool exists(SeqId seq) const;
  void set_eviction_policy(EvictionPolicy* policy);  // not owned; null: see eviction_policy.h
  void add_observer(KvObserver* observer);           // not owned

  KvUsage usage() const;
  const KvCounters& counters() const;
  Bytes evictable() const;       // bytes of blocks that giving up everything idle would free
  Bytes bytes_per_node() const;  // metadata of one full block of a named sequence
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

#pragma once

#include <map>
#include <memory>
#include <vector>

#include "kv/kv_cache.h"
#include "kv/testing/fake_layers.h"
#include "kv/testing/fake_memory.h"
#include "kv/testing/prefix_oracle.h"
#include "kv/testing/small_store.h"

namespace weir {

// first, first+1, ...
inline Tokens tokens_from(int32_t first, int64_t n) {
  Tokens tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(first + static_cast<int32_t>(i));
  return tokens;
}
inline Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline std::vector<Fingerprint> prints_of(const Tokens& tokens) {
  std::vector<Fingerprint> prints;
  uint64_t prefix = 0;
  for (const int32_t token : tokens) {
    prefix = extend_hash(prefix, static_cast<uint64_t>(token));
    prints.push_back({prefix, static_cast<int64_t>(prints.size())});
  }
  return prints;
}

// A KvCache with named sequences and their tokens, computed by FakeLayers.
struct PrefixStore {
  static constexpr NamespaceId kDefault{0};

  explicit PrefixStore(KvLayout layout, int64_t limit = int64_t{1} << 20, int64_t ghosts = 1024,
                       uint64_t hash_mask = UINT64_MAX)
      : budget({limit}) {
    auto made = KvCache::create(std::move(layout), budget, memory,
                                {.address_space = {2 * limit},
                                 .max_context = 0,
                                 .extent = {4096},
                                 .poison = true,
                                 .ghosts = ghosts,
                                 .compare_duplicates = true,
                                 .hash_mask = hash_mask});
    WEIR_CHECK(made.ok());
    cache = std::move(*made);
  }
  PrefixStore(int block_tokens, std::vector<Retention> retentions, int layers = 1)
      : PrefixStore(fingerprint_layout(block_tokens, retentions, layers)) {}

  SeqId create(NamespaceId id = kDefault) {
    const SeqId seq = cache->create_sequence(id);
    tokens[seq] = {};
    return seq;
  }

  // Starts on what is known of `prompt`, without computing the rest. The match is kept.
  SeqId start(const Tokens& prompt, NamespaceId id = kDefault) {
    match = cache->match(id, prompt);
    const SeqId seq = cache->resume(id, prompt, match).value();
    cache->check_invariants();
    tokens[seq] = Tokens(prompt.begin(), prompt.begin() + match.first_computed());
    return seq;
  }

  // Appends `added` in one step and accepts the first `accepted` (negative: all).
  Status append(SeqId seq, const Tokens& added, int64_t accepted = -1) {
    const StepItem item{.seq = seq,
                        .n_tokens = static_cast<int64_t>(added.size()),
                        .min_accept = accepted < 0 ? -1 : std::min<int64_t>(1, accepted),
                        .tokens = added};
    Result<Step> step = cache->plan_step({{item}});
    if (!step) return step.error();
    cache->check_invariants();
    const Tokens all = tokens[seq] + added;
    FakeLayers layers(cache->layout(), *step);
    layers.compute(*step, 0, prints_of(all));
    WEIR_CHECK(!layers.failure);
    is_right = layers.is_right;
    const int64_t n = accepted < 0 ? item.n_tokens : accepted;
    step->commit({{n}});
    cache->check_invariants();
    tokens[seq].insert(tokens[seq].end(), added.begin(), added.begin() + n);
    return {};
  }

  // Computes what is missing of `prompt` in steps of at most `chunk` tokens that stop at the end of
  // a rebuilding and at `stops`, where a restart point is marked.
  void read(SeqId seq, const Tokens& prompt, int64_t chunk = 1 << 20,
            const std::vector<int64_t>& stops = {}) {
    int64_t at = cache->length(seq);
    const int64_t n = static_cast<int64_t>(prompt.size());
    while (at < n) {
      int64_t end = std::min(n, at + chunk);
      if (const int64_t replay = cache->replay_end(seq); replay > at) end = std::min(end, replay);
      for (const int64_t stop : stops) {
        if (stop > at) end = std::min(end, stop);
      }
      WEIR_CHECK(append(seq, Tokens(prompt.begin() + at, prompt.begin() + end)).ok());
      at = end;
      if (std::find(stops.begin(), stops.end(), at) != stops.end()) {
        WEIR_CHECK(cache->mark_restart(seq, RestartKind::end_of_prompt));
      }
    }
  }

  // A whole conversation that is read, marked at `stops` and released.
  void keep(const Tokens& prompt, const std::vector<int64_t>& stops = {},
            NamespaceId id = kDefault) {
    const SeqId seq = start(prompt, id);
    read(seq, prompt, 1 << 20, stops);
    release(seq);
  }
  void release(SeqId seq) {
    cache->release(seq);
    tokens.erase(seq);
    cache->check_invariants();
  }

  FakeMemory memory;
  Budget budget;
  std::unique_ptr<KvCache> cache;
  std::map<SeqId, Tokens> tokens;
  PrefixMatch match;
  std::vector<bool> is_right;  // of the last step's tokens
};

}  // namespace weir

#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "kv/kv_cache.h"
#include "kv/testing/fingerprints.h"
#include "kv/testing/prefix_stream.h"

namespace weir {

using Tokens = std::vector<int32_t>;

// Says by the definitions what a prompt can be restarted from. It lists positions one by one, tries
// every boundary, and follows what is missing forwards through the layers; it does no window
// arithmetic.
class PrefixOracle {
 public:
  // Who holds local rows: those of its tokens that the query after the first `length` reads, in
  // full blocks.
  struct Holder {
    const std::vector<uint64_t>* prefixes = nullptr;  // one per token: hash of the tokens up to it
    int64_t length = 0;
  };
  struct Best {
    int64_t restart = 0;         // the last boundary where every group has what is read there
    int64_t first_computed = 0;  // the latest token from which on computing again is exact
  };

  explicit PrefixOracle(const PrefixConfig& config) : config_(config) {}

  // First of the first n rows that the query after them reads in a group; n if none.
  int64_t first_read(size_t g, int64_t n) {
    const auto [entry, is_new] = first_read_.try_emplace({g, n}, 0);
    if (!is_new) return entry->second;
    while (entry->second < n && !is_visible(g, entry->second, n)) ++entry->second;
    return entry->second;
  }

  static std::vector<uint64_t> prefixes_of(const Tokens& tokens) {
    std::vector<uint64_t> prefixes;
    for (const int32_t token : tokens) {
      prefixes.push_back(
          extend_hash(prefixes.empty() ? 0 : prefixes.back(), static_cast<uint64_t>(token)));
    }
    return prefixes;
  }

  // Whether somebody else has a block of a group; by its index.
  using AlsoHeld = std::function<bool(size_t group, int64_t block)>;

  // For a prompt of whose tokens the first `known` have their global rows.
  Best best(
      const std::vector<uint64_t>& prompt, int64_t known, const std::vector<Holder>& holders,
      const AlsoHeld& is_also_held = [](size_t, int64_t) { return false; }) {
    const int64_t B = config_.block_tokens;
    Best found;
    for (int64_t p = B; p <= known && p < static_cast<int64_t>(prompt.size()); p += B) {
      bool is_valid = true;
      for (size_t g = 0; is_valid && g < config_.groups.size(); ++g) {
        is_valid = is_global(g) || has_rows(g, prompt, p, holders, is_also_held);
      }
      if (is_valid) found.restart = p;
      found.first_computed = std::max(found.first_computed, heal_start(p));
    }
    found.first_computed = std::max(found.first_computed, found.restart);
    return found;
  }

  // Latest block boundary from which on computing again gives every block right that a restart at p
  // reads.
  int64_t heal_start(int64_t p) {
    const auto [entry, is_new] = heal_start_.try_emplace(p, 0);
    if (!is_new) return entry->second;
    const int64_t B = config_.block_tokens;
    int64_t start = p;
    while (start > 0 && !heals(start, p)) start -= B;
    return entry->second = start;
  }

 private:
  bool is_global(size_t g) const { return config_.groups[g].kind == LayerKind::global; }

  bool is_visible(size_t g, int64_t key, int64_t query) const {
    const Retention& r = config_.groups[g];
    switch (r.kind) {
      case LayerKind::global:
        return key <= query;
      case LayerKind::sliding:
        return key <= query && key > query - r.window;
      case LayerKind::chunked:
        return key <= query && key / r.window == query / r.window;
    }
    return false;
  }

  bool has_rows(size_t g, const std::vector<uint64_t>& prompt, int64_t p,
                const std::vector<Holder>& holders, const AlsoHeld& is_also_held) {
    const int64_t B = config_.block_tokens;
    for (int64_t row = p - 1; row >= first_read(g, p) / B * B && first_read(g, p) < p; row -= B) {
      const bool is_held = std::any_of(holders.begin(), holders.end(), [&](const Holder& h) {
        const int64_t end = h.length / B * B, begin = first_read(g, h.length) / B * B;
        return row < end && row >= begin &&
               (*h.prefixes)[static_cast<size_t>(row)] == prompt[static_cast<size_t>(row)];
      });
      if (!is_held && !is_also_held(g, row / B)) return false;
    }
    return true;
  }

  // Token by token and layer by layer: which states are right if nothing local before `start` is
  // there?
  bool heals(int64_t start, int64_t p) {
    const int64_t B = config_.block_tokens;
    std::vector<bool> state(static_cast<size_t>(p - start + 1), true);  // the last is token p's
    for (size_t g = 0; g < config_.groups.size(); ++g) {
      if (is_global(g)) continue;
      for (int layer = 0; layer < config_.layers; ++layer) {
        const std::vector<bool> rows = state;
        for (int64_t row = first_read(g, p) / B * B; row < p; ++row) {
          if (row < start || !rows[static_cast<size_t>(row - start)]) return false;
        }
        for (int64_t query = start; query < p; ++query) {
          for (int64_t key = first_read(g, query); key <= query; ++key) {
            const bool is_right = key >= start && rows[static_cast<size_t>(key - start)];
            if (!is_right) state[static_cast<size_t>(query - start)] = false;
            if (!is_right) break;
          }
        }
      }
    }
    return true;
  }

  const PrefixConfig& config_;
  std::map<std::pair<size_t, int64_t>, int64_t> first_read_;
  std::map<int64_t, int64_t> heal_start_;
};

}  // namespace weir

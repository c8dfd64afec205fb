#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "geometry/window.h"
#include "kv/testing/fingerprints.h"

namespace weir {

// A model made of fingerprints. A token's row in a layer says which prefix it belongs to, and is
// right only if the token's state before that layer was; the state after a layer is right only if
// all rows that the token must see there are right. So what a real model would compute from a
// missing or wrong row is followed through the layers, bit for bit or not at all.
class FakeLayers {
 public:
  FakeLayers(const KvLayout& layout, const Step& step) : layout_(layout), scratch_(layout, step) {}

  // Computes the new tokens of one item through its tables. `prints` are the fingerprints of all
  // the sequence's tokens up to the step's end.
  void compute(const Step& step, size_t item, const std::vector<Fingerprint>& prints) {
    const int64_t n_new = step.items()[item].n_tokens;
    const int64_t n_past = static_cast<int64_t>(prints.size()) - n_new;
    is_right.assign(static_cast<size_t>(n_new), true);
    for (size_t l = 0; l < layout_.group_of.size(); ++l) {
      const KvGroup& g = layout_.groups[static_cast<size_t>(layout_.group_of[l])];
      const GroupLayer& layer = g.layers[static_cast<size_t>(layout_.slot_of[l])];
      const StepTable& table = step.table(item, static_cast<size_t>(g.id));
      if (table.n_past != n_past || table.n_new != n_new) return fail("wrong table length");
      if (layer.layer == static_cast<int>(l)) store(g, layer, table, prints);
      attend(g, layer, table, prints);
    }
  }

  std::vector<bool> is_right;          // per new token: what the last layer gives
  std::optional<std::string> failure;  // what no step may do

 private:
  static constexpr uint64_t kWrong = 0x5a5a5a;

  void fail(const std::string& what) {
    if (!failure) failure = what;
  }

  void store(const KvGroup& g, const GroupLayer& layer, const StepTable& table,
             const std::vector<Fingerprint>& prints) {
    if (table.is_stored) return;
    for (int64_t row = table.n_past; row < table.n_past + table.n_new; ++row) {
      std::byte* block = scratch_.block(g, table, row);
      if (!block) return fail("no block for a new row");
      Fingerprint print = prints[static_cast<size_t>(row)];
      if (!is_right[static_cast<size_t>(row - table.n_past)]) print.prefix ^= kWrong;
      write_layer_fingerprint(g, layer, block, static_cast<int>(row % g.block_tokens), print);
    }
  }

  void attend(const KvGroup& g, const GroupLayer& layer, const StepTable& table,
              const std::vector<Fingerprint>& prints) {
    const int64_t end = table.n_past + table.n_new;
    const int64_t first = visible(g, table, table.n_past);
    // How many rows from `first` on are wrong, up to each.
    std::vector<int64_t> wrong = {0};
    for (int64_t row = first; row < end; ++row) {
      wrong.push_back(wrong.back() + (reads_right(g, layer, table, prints, row) ? 0 : 1));
    }
    for (int64_t query = table.n_past; query < end; ++query) {
      const int64_t says = visible(g, table, query), must = first_visible(g.retention, query);
      if (says < must) return fail("a query reads rows before its window");
      if (says < first) return fail("a later query reads earlier rows");
      const int64_t bad =
          wrong[static_cast<size_t>(query + 1 - first)] - wrong[static_cast<size_t>(says - first)];
      if (says > must || bad > 0) is_right[static_cast<size_t>(query - table.n_past)] = false;
    }
  }

  static int64_t visible(const KvGroup& g, const StepTable& table, int64_t query) {
    return table.first_visible_row.empty()
               ? first_visible(g.retention, query)
               : table.first_visible_row[static_cast<size_t>(query - table.n_past)];
  }

  bool reads_right(const KvGroup& g, const GroupLayer& layer, const StepTable& table,
                   const std::vector<Fingerprint>& prints, int64_t row) {
    const std::byte* block = scratch_.block(g, table, row);
    if (!block) {
      fail("a visible row has no block");
      return false;
    }
    const int at = static_cast<int>(row % g.block_tokens);
    Fingerprint print = prints[static_cast<size_t>(row)];
    if (has_layer_fingerprint(g, layer, block, at, print)) return true;
    print.prefix ^= kWrong;
    if (!has_layer_fingerprint(g, layer, block, at, print)) fail("a visible row is another's");
    return false;
  }

  const KvLayout& layout_;
  Scratch scratch_;
};

}  // namespace weir

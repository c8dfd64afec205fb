#include "geometry/growth.h"

#include <algorithm>

namespace weir {

Result<KvGrowth> KvGrowth::of(const KvGeometry& geometry, const KvFormat& format) {
  // The layout refuses rows that a type cannot store.
  const Result<KvLayout> layout = make_layout(geometry, format);
  if (!layout) return layout.error();
  KvGrowth growth;
  for (const KvGroup& group : layout->groups) {
    Bytes per_token;
    int n_layers = 0;
    for (const GroupLayer& layer : group.layers) {
      const int64_t v = kv_row_bytes(group.v_type, layer.v_dim);
      per_token += layer.n_kv_heads * Bytes{kv_row_bytes(group.k_type, layer.k_stored()) + v};
      growth.uniform_per_token_ +=
          layer.n_kv_heads * Bytes{kv_row_bytes(group.k_type, layer.k_dim) + v};
      n_layers += layer.n_kv_heads > 0;
    }
    if (layout->is_local(group)) {
      growth.locals_.push_back({group.retention, per_token, n_layers});
    } else {
      growth.global_per_token_ = per_token;
      growth.n_global_layers_ = n_layers;
    }
  }
  return growth;
}

Bytes KvGrowth::local_per_token() const {
  Bytes sum;
  for (const Local& local : locals_) sum += local.per_token;
  return sum;
}

Bytes KvGrowth::local_bytes() const {
  Bytes sum;
  for (const Local& local : locals_) sum += local.retention.window * local.per_token;
  return sum;
}

Bytes KvGrowth::local(int64_t n) const {
  Bytes sum;
  for (const Local& local : locals_) sum += std::min(n, local.retention.window) * local.per_token;
  return sum;
}

double KvGrowth::ratio(int64_t n) const {
  const int64_t all = uniform(n).v;
  return all == 0 ? 1.0 : static_cast<double>(resident(n).v) / static_cast<double>(all);
}

std::optional<int64_t> KvGrowth::crossover() const {
  if (global_per_token_.v == 0 || local_per_token().v == 0) return std::nullopt;
  return ceil_div(local_bytes().v, global_per_token_.v);
}

}  // namespace weir

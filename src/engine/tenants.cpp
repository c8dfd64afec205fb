#include "engine/tenants.h"

namespace weir {

Tenants::Tenants(KvCache& cache, const std::vector<TenantOptions>& options) : options_(options) {
  if (options_.empty()) options_.push_back({});
  for (size_t i = 0; i < options_.size(); ++i) {
    // The store's first namespace is there from the start.
    spaces_.push_back(i == 0 ? NamespaceId{} : cache.open_namespace());
    cache.set_tier_salt(spaces_[i], options_[i].name);
    if (options_[i].floor.v > 0 || options_[i].ceiling.v > 0)
      cache.set_quota(spaces_[i], options_[i].floor, options_[i].ceiling);
  }
}

Bytes Tenants::floors_of_others(TenantId id) const {
  Bytes sum;
  for (size_t i = 0; i < options_.size(); ++i)
    if (i != id) sum += options_[i].floor;
  return sum;
}

Bytes Tenants::most_floors_of_others() const {
  Bytes most;
  for (uint32_t i = 0; i < options_.size(); ++i) most = std::max(most, floors_of_others(i));
  return most;
}

}  // namespace weir

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kv/kv_cache.h"

namespace weir {

using TenantId = uint32_t;  // index in EngineOptions::tenants

// Someone whose conversations are apart from everybody else's: nothing of one tenant's prompts is
// found, timed or counted by another.
struct TenantOptions {
  std::string name;
  Bytes floor;    // KV that others' needs never evict
  Bytes ceiling;  // most KV it may keep; 0: the budget
};

// The tenants of an engine, known from the start. Tenant 0 is everybody without a name.
class Tenants {
 public:
  // Opens a namespace of the index for each.
  Tenants(KvCache& cache, const std::vector<TenantOptions>& options);

  bool has(TenantId id) const { return id < spaces_.size(); }
  NamespaceId name_space(TenantId id) const { return spaces_[id]; }
  const std::string& name(TenantId id) const { return options_[id].name; }
  size_t size() const { return spaces_.size(); }
  // Bytes that others may not evict: the sum of the floors but for `id`'s.
  Bytes floors_of_others(TenantId id) const;
  Bytes most_floors_of_others() const;  // of any tenant's

 private:
  std::vector<TenantOptions> options_;
  std::vector<NamespaceId> spaces_;
};

}  // namespace weir

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tenants.h"
#include "http/http_types.h"

namespace weir {

// The keys that a server takes, and whose they are. A file has one a line:
//
//   KEY
//   NAME:KEY [floor=SIZE] [ceiling=SIZE] [admin]
//
// Empty lines and what follows a # at the start of a word are comments. Keys with the same name are
// one tenant's, so that a key can be replaced without losing what it kept; a key without a name is
// a tenant of its own. `floor` is KV that the needs of others never evict, `ceiling` the most that
// the tenant may keep; an admin sees all tenants.
class ApiKeys {
 public:
  // `source` names the file in errors. Errors: invalid_input with the line's number; a file without
  // a key is one.
  static Result<ApiKeys> parse(std::string_view text, const std::string& source);

  // Of "Authorization: Bearer KEY" or "X-Api-Key: KEY". Takes the same time whichever key it is,
  // and however much of it is right.
  std::optional<Caller> find(const HttpRequest& request) const;

  // By Caller::tenant, for EngineOptions::tenants. The first, without a name, is for who needs no
  // key.
  const std::vector<TenantOptions>& tenants() const { return tenants_; }

 private:
  struct Key {
    std::string secret;
    Caller caller;
  };
  Status add(std::string_view line, int number);

  std::vector<TenantOptions> tenants_{TenantOptions{}};
  std::vector<Key> keys_;
};

}  // namespace weir

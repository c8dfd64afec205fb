#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "engine/tenants.h"
#include "kv/kv_cache.h"

namespace weir {

// What can be said of a named conversation.
struct ConversationInfo {
  std::string name;
  int64_t tokens = 0;  // prompt and reply of its last request
  int64_t in_kv = 0;   // of these, how many a request that continues it need not read again
  Bytes unique;        // KV that removing it would free
  Bytes shared;        // its other KV: running requests, other names or other branches keep it
  std::vector<ChainBytes::Point> restart_points;  // where it can be gone back to, ascending
  bool is_pinned = false;
  int running = 0;          // requests of this name that have not ended
  double idle_seconds = 0;  // since its last request ended
};

// The conversations that clients gave names. A name only points into the prefix index, which finds
// a conversation by its tokens whether it has a name or not: the registry is for listing, pinning
// and forgetting. The tokens are the truth; their KV may be evicted while idle. Engine thread only.
class Conversations {
 public:
  // Names a tenant may have at once; beyond, the one unused for longest is forgotten.
  static constexpr size_t kMostPerTenant = 1024;
  static constexpr size_t kLongestName = 128;

  Conversations(KvCache& cache, const Tenants& tenants) : cache_(cache), tenants_(tenants) {}

  // A request of this name has come; start() and end() enclose it. Until the first has ended the
  // conversation has no tokens.
  void start(TenantId tenant, const std::string& name);
  void end(TenantId tenant, const std::string& name);
  // It leaves these tokens in the KV.
  void record(TenantId tenant, const std::string& name, std::vector<int32_t> tokens);

  std::vector<ConversationInfo> list(TenantId tenant) const;  // by name
  int64_t size() const;                                       // of all tenants
  // All below: not_found if the tenant has none of that name.
  Result<ConversationInfo> inspect(TenantId tenant, std::string_view name) const;
  // Evicted after everything that is not pinned. Errors: over_budget beyond the share of the
  // budget that pins may take.
  Status pin(TenantId tenant, std::string_view name);
  Status unpin(TenantId tenant, std::string_view name);
  // Keeps the latest point as a restart point of its own; returns the tokens it covers. Errors:
  // over_budget if its KV is no longer there.
  Result<int64_t> checkpoint(TenantId tenant, std::string_view name);
  // Forgets what came after the first n tokens. Errors: invalid_input beyond its length,
  // unavailable while a request of this name runs, which would bring it back at its end.
  Status rewind(TenantId tenant, std::string_view name, int64_t n);
  // A second name for the same tokens and the same KV. Errors: invalid_input if `to` is taken.
  Status fork(TenantId tenant, std::string_view from, const std::string& to);
  // Forgets it and frees the KV that it alone kept. Errors: unavailable while a request of it runs.
  Status remove(TenantId tenant, std::string_view name);

  // Errors: invalid_input for an empty, overlong or unprintable name.
  static Status check_name(std::string_view name);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::vector<int32_t> tokens;
    Clock::time_point last_use;
    std::optional<PinId> pin;
    int running = 0;
    bool is_new = false;  // its first request has not ended
  };
  using Names = std::map<std::string, Entry, std::less<>>;

  void release_pin(Entry& entry);
  int64_t named_by_others(TenantId tenant, std::string_view name,
                          std::span<const int32_t> tokens) const;
  Result<Entry*> find(TenantId tenant, std::string_view name);
  Result<Entry*> find_idle(TenantId tenant, std::string_view name);
  std::map<std::string_view, int64_t> all_named_by_others(const Names& names) const;
  ConversationInfo info_of(TenantId tenant, const std::string& name, const Entry& entry,
                           int64_t named_by_others) const;
  void forget_oldest(TenantId tenant);

  KvCache& cache_;
  const Tenants& tenants_;
  std::map<TenantId, Names> names_;
};

}  // namespace weir

#include "engine/conversations.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/quote.h"
#include "engine/common_prefix.h"

namespace weir {

Status Conversations::check_name(std::string_view name) {
  if (name.empty() || name.size() > kLongestName)
    return Status(Code::invalid_input,
                  "a conversation's name has 1 to " + std::to_string(kLongestName) + " bytes");
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), is_control))
    return Status(Code::invalid_input, "a conversation's name holds no control characters");
  return {};
}

void Conversations::start(TenantId tenant, const std::string& name) {
  const auto [place, is_new] = names_[tenant].try_emplace(name);
  if (is_new) place->second.last_use = Clock::now();
  place->second.is_new |= is_new;
  ++place->second.running;
}

void Conversations::end(TenantId tenant, const std::string& name) {
  Names& names = names_[tenant];
  const auto found = names.find(name);
  --found->second.running;
  // Nothing was ever computed.
  if (found->second.running == 0 && found->second.is_new) names.erase(found);
}

void Conversations::record(TenantId tenant, const std::string& name, std::vector<int32_t> tokens) {
  Names& names = names_[tenant];
  Entry& entry = names[name];
  if (std::exchange(entry.is_new, false) && names.size() > kMostPerTenant) forget_oldest(tenant);
  const NamespaceId space = tenants_.name_space(tenant);
  entry.tokens = std::move(tokens);
  if (entry.pin) {  // it moves on with the conversation
    release_pin(entry);
    if (Result<PinId> pin = cache_.pin(space, entry.tokens); pin.ok()) entry.pin = *pin;
  }
  entry.last_use = Clock::now();
}

// Only the name goes: the KV is left to eviction, like that of conversations without one. With
// nothing but running ones there are more names for as long.
void Conversations::forget_oldest(TenantId tenant) {
  Names& names = names_[tenant];
  const auto is_older = [](const auto& a, const auto& b) {
    return std::tuple(a.second.running > 0, a.second.pin.has_value(), a.second.last_use) <
           std::tuple(b.second.running > 0, b.second.pin.has_value(), b.second.last_use);
  };
  const auto oldest = std::min_element(names.begin(), names.end(), is_older);
  if (oldest->second.running > 0) return;
  release_pin(oldest->second);
  names.erase(oldest);
}

void Conversations::release_pin(Entry& entry) {
  if (entry.pin) cache_.unpin(*entry.pin);
  entry.pin.reset();
}

int64_t Conversations::size() const {
  int64_t n = 0;
  for (const auto& [tenant, names] : names_) n += std::ssize(names);
  return n;
}

Result<Conversations::Entry*> Conversations::find(TenantId tenant, std::string_view name) {
  Names& names = names_[tenant];
  const auto found = names.find(name);
  if (found == names.end())
    return Status(Code::not_found, "there is no conversation " + quote(std::string(name)));
  return &found->second;
}

Result<Conversations::Entry*> Conversations::find_idle(TenantId tenant, std::string_view name) {
  Result<Entry*> entry = find(tenant, name);
  if (entry && (*entry)->running > 0)
    return Status(Code::unavailable, "a request of conversation " + quote(std::string(name)) +
                                         " is running; wait for its end, or cancel it");
  return entry;
}

ConversationInfo Conversations::info_of(TenantId tenant, const std::string& name,
                                        const Entry& entry, int64_t named_by_others) const {
  const NamespaceId space = tenants_.name_space(tenant);
  const ChainBytes bytes = cache_.bytes_of(space, entry.tokens, named_by_others);
  ConversationInfo info;
  info.name = name;
  info.tokens = std::ssize(entry.tokens);
  // One token more, as the next request has at least: the last of a prompt is always computed.
  std::vector<int32_t> next = entry.tokens;
  next.push_back(-1);
  info.in_kv = cache_.match(space, next).tokens;
  info.unique = bytes.unique;
  info.shared = bytes.shared;
  info.restart_points = bytes.points;
  info.is_pinned = entry.pin && cache_.is_pinned(*entry.pin);
  info.running = entry.running;
  info.idle_seconds = std::chrono::duration<double>(Clock::now() - entry.last_use).count();
  return info;
}

std::vector<ConversationInfo> Conversations::list(TenantId tenant) const {
  std::vector<ConversationInfo> all;
  const auto names = names_.find(tenant);
  if (names == names_.end()) return all;
  const std::map<std::string_view, int64_t> named = all_named_by_others(names->second);
  for (const auto& [name, entry] : names->second)
    all.push_back(info_of(tenant, name, entry, named.at(name)));
  return all;
}

Result<ConversationInfo> Conversations::inspect(TenantId tenant, std::string_view name) const {
  Result<Entry*> entry = const_cast<Conversations*>(this)->find(tenant, name);
  if (!entry) return entry.error();
  return info_of(tenant, std::string(name), **entry,
                 named_by_others(tenant, name, (*entry)->tokens));
}

Status Conversations::pin(TenantId tenant, std::string_view name) {
  Result<Entry*> entry = find(tenant, name);
  if (!entry) return entry.error();
  if ((*entry)->pin && cache_.is_pinned(*(*entry)->pin)) return {};
  Result<PinId> pin = cache_.pin(tenants_.name_space(tenant), (*entry)->tokens);
  if (!pin) return pin.error();
  (*entry)->pin = *pin;
  return {};
}

Status Conversations::unpin(TenantId tenant, std::string_view name) {
  Result<Entry*> entry = find(tenant, name);
  if (!entry) return entry.error();
  release_pin(**entry);
  return {};
}

Result<int64_t> Conversations::checkpoint(TenantId tenant, std::string_view name) {
  Result<Entry*> entry = find(tenant, name);
  if (!entry) return entry.error();
  const NamespaceId space = tenants_.name_space(tenant);
  std::vector<int32_t> next = (*entry)->tokens;
  next.push_back(-1);
  const PrefixMatch found = cache_.match(space, next);
  if (found.tokens == 0 || found.heal_tokens > 0)
    return Status(Code::over_budget, "there is no KV of conversation " + quote(std::string(name)) +
                                         " to keep; continue it first");
  Result<SeqId> seq = cache_.resume(space, next, found);
  if (!seq) return seq.error();
  cache_.mark_restart(*seq, RestartKind::client);
  cache_.release(*seq);
  return found.tokens;
}

// Tokens at the start of `tokens` that another name points to as well: its KV stays.
int64_t Conversations::named_by_others(TenantId tenant, std::string_view name,
                                       std::span<const int32_t> tokens) const {
  int64_t most = 0;
  for (const auto& [other, entry] : names_.at(tenant)) {
    if (other != name) most = std::max(most, common_prefix(entry.tokens, tokens));
  }
  return most;
}

// The same for every name: among texts in order, neighbours have the most in common.
std::map<std::string_view, int64_t> Conversations::all_named_by_others(const Names& names) const {
  std::vector<const Names::value_type*> sorted;
  for (const auto& named : names) sorted.push_back(&named);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->second.tokens < b->second.tokens; });
  std::map<std::string_view, int64_t> most;
  for (size_t i = 0; i < sorted.size(); ++i) {
    int64_t& own = most[sorted[i]->first];
    if (i == 0) continue;
    const int64_t common = common_prefix(sorted[i - 1]->second.tokens, sorted[i]->second.tokens);
    own = common;
    int64_t& before = most[sorted[i - 1]->first];
    before = std::max(before, common);
  }
  return most;
}

Status Conversations::rewind(TenantId tenant, std::string_view name, int64_t n) {
  Result<Entry*> entry = find_idle(tenant, name);
  if (!entry) return entry.error();
  std::vector<int32_t>& tokens = (*entry)->tokens;
  if (n < 0 || n > std::ssize(tokens))
    return Status(Code::invalid_input, "conversation " + quote(std::string(name)) + " has " +
                                           std::to_string(tokens.size()) +
                                           " tokens; rewind to 0 to that many");
  const NamespaceId space = tenants_.name_space(tenant);
  const bool was_pinned = (*entry)->pin.has_value();
  release_pin(**entry);
  cache_.drop(space, tokens, std::max(n, named_by_others(tenant, name, tokens)));
  tokens.resize(static_cast<size_t>(n));
  if (was_pinned && n > 0) {
    if (Result<PinId> pin = cache_.pin(space, tokens); pin.ok()) (*entry)->pin = *pin;
  }
  return {};
}

Status Conversations::fork(TenantId tenant, std::string_view from, const std::string& to) {
  if (Status status = check_name(to); !status.ok()) return status;
  Result<Entry*> entry = find(tenant, from);
  if (!entry) return entry.error();
  Names& names = names_[tenant];
  if (names.contains(to))
    return Status(Code::invalid_input, "there already is a conversation " + quote(to));
  if (names.size() >= kMostPerTenant)
    return Status(Code::invalid_input, "there are " + std::to_string(kMostPerTenant) +
                                           " conversations already; delete one first");
  names[to] = Entry{.tokens = (*entry)->tokens, .last_use = Clock::now(), .pin = {}};
  return {};
}

Status Conversations::remove(TenantId tenant, std::string_view name) {
  Result<Entry*> entry = find_idle(tenant, name);
  if (!entry) return entry.error();
  const NamespaceId space = tenants_.name_space(tenant);
  release_pin(**entry);
  cache_.drop(space, (*entry)->tokens, named_by_others(tenant, name, (*entry)->tokens));
  Names& names = names_[tenant];
  names.erase(names.find(name));
  return {};
}

}  // namespace weir

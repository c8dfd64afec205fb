#include "server/api_keys.h"

#include <algorithm>

#include "base/quote.h"

namespace weir {
namespace {

constexpr std::string_view kBlank = " \t\r";

// The next word of `rest`, which it leaves; empty at the end or a comment.
std::string_view next_word(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(kBlank), rest.size()));
  if (rest.starts_with('#')) rest = {};
  const std::string_view word = rest.substr(0, rest.find_first_of(kBlank));
  rest.remove_prefix(word.size());
  return word;
}

// No branch depends on the bytes, and every one of `secret` is looked at.
bool is_equal(std::string_view secret, std::string_view given) {
  volatile unsigned char difference = secret.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < secret.size(); ++i) {
    const char other = given.empty() ? '\0' : given[i % given.size()];
    difference = difference | static_cast<unsigned char>(secret[i] ^ other);
  }
  return difference == 0;
}

// A tenant's words after its key.
Status read_word(std::string_view word, TenantOptions& tenant, bool& is_admin) {
  if (word == "admin") {
    is_admin = true;
    return {};
  }
  const size_t equals = std::min(word.find('='), word.size());
  const std::string_view name = word.substr(0, equals);
  if (name != "floor" && name != "ceiling") {
    return Status(Code::invalid_input, quote(word) + " is none of floor=SIZE, ceiling=SIZE, admin");
  }
  const Result<Bytes> size = parse_bytes(word.substr(std::min(equals + 1, word.size())));
  if (!size) return size.error();
  (name == "floor" ? tenant.floor : tenant.ceiling) = *size;
  return {};
}

}  // namespace

Result<ApiKeys> ApiKeys::parse(std::string_view text, const std::string& source) {
  ApiKeys keys;
  int number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    ++number;
    if (Status s = keys.add(line, number); !s.ok()) {
      return Status(s.code(), source + ":" + std::to_string(number) + ": " + s.message());
    }
  }
  if (keys.keys_.empty()) return Status(Code::invalid_input, source + " has no key");
  return keys;
}

Status ApiKeys::add(std::string_view line, int number) {
  std::string_view rest = line;
  const std::string_view first = next_word(rest);
  if (first.empty()) return {};
  const size_t colon = first.find(':');
  const bool has_name = colon != std::string_view::npos;
  const std::string_view secret = has_name ? first.substr(colon + 1) : first;
  const std::string name =
      has_name ? std::string(first.substr(0, colon)) : "line " + std::to_string(number);
  if (secret.empty() || name.empty()) {
    return Status(Code::invalid_input, "the line should be KEY or NAME:KEY");
  }
  // Messages do not repeat keys: they end up in logs.
  for (const Key& key : keys_) {
    if (key.secret == secret) return Status(Code::invalid_input, "this key was given before");
  }

  auto tenant = std::find_if(tenants_.begin() + 1, tenants_.end(),
                             [&](const TenantOptions& t) { return t.name == name; });
  if (tenant == tenants_.end())
    tenant = tenants_.insert(tenants_.end(), TenantOptions{name, {}, {}});
  Caller caller{static_cast<uint32_t>(tenant - tenants_.begin()), name, false};
  for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) {
    if (Status s = read_word(word, *tenant, caller.is_admin); !s.ok()) return s;
  }
  if (tenant->ceiling.v > 0 && tenant->floor > tenant->ceiling) {
    return Status(Code::invalid_input, "the floor is above the ceiling");
  }
  keys_.push_back({std::string(secret), std::move(caller)});
  return {};
}

std::optional<Caller> ApiKeys::find(const HttpRequest& request) const {
  std::string_view given = request.header("x-api-key");
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = request.header("authorization");
  const bool is_bearer =
      authorization.size() > kBearer.size() &&
      std::equal(kBearer.begin(), kBearer.end(), authorization.begin(), [](char a, char b) {
        return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
      });
  if (is_bearer) {
    given = authorization.substr(kBearer.size());
    given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
  }
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (is_equal(key.secret, given)) found = &key;
  }
  if (!found) return std::nullopt;
  return found->caller;
}

}  // namespace weir

#include "http/router.h"

#include <optional>

namespace weir {
namespace {

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> segments;
  for (size_t start = path.starts_with('/') ? 1 : 0; start <= path.size();) {
    const size_t end = std::min(path.find('/', start), path.size());
    segments.emplace_back(path.substr(start, end - start));
    start = end + 1;
  }
  return segments;
}

bool is_variable(const std::string& segment) {
  return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}

using Params = std::map<std::string, std::string>;

// The params if the pattern matches; `segments` are decoded one by one, so that a name may hold a
// slash.
std::optional<Params> match(const std::vector<std::string>& pattern,
                            const std::vector<std::string>& segments) {
  if (pattern.size() != segments.size()) return std::nullopt;
  Params params;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (!is_variable(pattern[i])) {
      if (pattern[i] != segments[i]) return std::nullopt;
    } else {
      if (segments[i].empty()) return std::nullopt;
      params.emplace(pattern[i].substr(1, pattern[i].size() - 2), segments[i]);
    }
  }
  return params;
}

void append(std::string& list, std::string_view item) {
  if (!list.empty()) list += ", ";
  list += item;
}

}  // namespace

void Router::add(std::string_view method, std::string_view pattern, HttpHandler handler,
                 Access access) {
  routes_.push_back({std::string(method), split(pattern), std::move(handler), access});
}

Router::Match Router::find(std::string_view method, std::string_view path) const {
  Match best;
  std::vector<std::string> segments = split(path);
  for (std::string& segment : segments) {
    std::optional<std::string> decoded = percent_decode(segment, false);
    if (!decoded) return best;
    segment = std::move(*decoded);
  }
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  size_t fewest = segments.size() + 1;
  for (const Route& route : routes_) {
    std::optional<Params> params = match(route.segments, segments);
    if (!params) continue;
    append(best.allowed, route.method);
    if (route.method == "GET") append(best.allowed, "HEAD");
    if (route.method != wanted || params->size() >= fewest) continue;
    fewest = params->size();
    best.handler = &route.handler;
    best.access = route.access;
    best.params = std::move(*params);
  }
  if (!best.allowed.empty()) append(best.allowed, "OPTIONS");
  return best;
}

}  // namespace weir

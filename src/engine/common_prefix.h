#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace weir {

// Tokens at the start that two texts have in common.
inline int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto n = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin();
}

}  // namespace weir

#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace weir {

// A number of bytes. A type of its own, so that tokens, blocks and bytes cannot be mixed up.
struct Bytes {
  int64_t v = 0;
  auto operator<=>(const Bytes&) const = default;

  Bytes& operator+=(Bytes o) {
    v += o.v;
    return *this;
  }
  Bytes& operator-=(Bytes o) {
    v -= o.v;
    return *this;
  }
};

constexpr Bytes operator+(Bytes a, Bytes b) { return {a.v + b.v}; }
constexpr Bytes operator-(Bytes a, Bytes b) { return {a.v - b.v}; }
constexpr Bytes operator*(Bytes a, int64_t n) { return {a.v * n}; }
constexpr Bytes operator*(int64_t n, Bytes a) { return {a.v * n}; }

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kGiB = 1024 * kMiB;

// ceil(a / b) for a >= 0, b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// "512 B", "22 KiB", "1.25 GiB": at most three decimals' worth of digits, binary units.
std::string format_bytes(Bytes bytes);

// "64MiB", "1.5 GiB", "4096", "2G": binary units, case-insensitive, a trailing B or iB optional.
// Errors: invalid_input for anything else, negative numbers and values over 2^62.
Result<Bytes> parse_bytes(std::string_view text);

}  // namespace weir

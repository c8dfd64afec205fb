#include "base/bytes.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace weir {

std::string format_bytes(Bytes bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes.v);
  int unit = 0;
  while (std::abs(value) >= 1024.0 && unit < 5) {
    value /= 1024.0;
    ++unit;
  }
  char text[64];
  const int decimals = value == std::floor(value) ? 0 : (std::abs(value) < 100.0 ? 2 : 1);
  std::snprintf(text, sizeof text, "%.*f %s", decimals, value, kUnits[unit]);
  return text;
}

Result<Bytes> parse_bytes(std::string_view text) {
  const Status bad(Code::invalid_input, "'" + std::string(text) +
                                            "' is not a size: write a number and KiB, MiB or GiB, "
                                            "for example 512MiB");
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return bad;
  std::string unit;
  for (const char* c = rest; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit += static_cast<char>(*c | 0x20);
  }
  double factor = 1;
  if (!unit.empty() && unit != "b") {
    static constexpr std::string_view kPrefixes = "kmgt";
    const size_t power = kPrefixes.find(unit[0]);
    const std::string tail = unit.substr(1);
    if (power == std::string_view::npos || (!tail.empty() && tail != "b" && tail != "ib"))
      return bad;
    factor = std::pow(1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * factor;
  if (!(bytes <= 0x1p62)) return bad;
  return Bytes{static_cast<int64_t>(bytes)};
}

}  // namespace weir

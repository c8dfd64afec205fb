#include "model/rope.h"

#include <cmath>

#include "base/check.h"

namespace weir {

void RopeLayer::rotate(double from, double to, std::span<float> row) const {
  WEIR_CHECK(n_rot >= 0 && n_rot % 2 == 0 && static_cast<size_t>(n_rot) <= row.size());
  const int half = n_rot / 2;
  for (int p = 0; p < half; ++p) {
    // Rotations of a plane add up: turning by the difference is enough.
    const double angle = (to - from) * scale * std::pow(theta, -2.0 * p / n_rot);
    const double c = std::cos(angle), s = std::sin(angle);
    float& x = row[static_cast<size_t>(neox ? p : 2 * p)];
    float& y = row[static_cast<size_t>(neox ? p + half : 2 * p + 1)];
    const double x0 = x, y0 = y;
    x = static_cast<float>(x0 * c - y0 * s);
    y = static_cast<float>(x0 * s + y0 * c);
  }
}

void RopeRotator::rotate(int layer, int64_t from, int64_t to, std::span<float> row) const {
  rope_of_(layer).rotate(static_cast<double>(from), static_cast<double>(to), row);
}

}  // namespace weir

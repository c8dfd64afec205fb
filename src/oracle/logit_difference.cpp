#include "oracle/logit_difference.h"

#include <algorithm>
#include <cmath>

namespace weir {

void LogitDifference::add(std::span<const float> reference, std::span<const float> other) {
  size_t best = 0, best_other = 0;
  bool has_nan = false;
  for (size_t i = 0; i < reference.size(); ++i) {
    double error = static_cast<double>(other[i]) - static_cast<double>(reference[i]);
    if (std::isnan(error)) {
      error = HUGE_VAL;
      has_nan = true;
    }
    max_abs = std::max(max_abs, std::abs(error));
    squared_error += error * error;
    squared_value += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
    if (reference[i] > reference[best]) best = i;
    if (other[i] > other[best_other]) best_other = i;
  }
  ++rows;
  values += static_cast<int64_t>(reference.size());
  if (has_nan) {
    gaps_where_argmax_differs.push_back(HUGE_VAL);
  } else if (best == best_other) {
    ++same_argmax;
  } else {
    gaps_where_argmax_differs.push_back(static_cast<double>(reference[best]) -
                                        static_cast<double>(reference[best_other]));
  }
}

double LogitDifference::nmse() const {
  if (squared_error == 0 && std::isfinite(squared_value)) return 0;
  const double ratio = squared_error / squared_value;
  return std::isfinite(ratio) ? ratio : HUGE_VAL;
}

double LogitDifference::rms() const {
  return values > 0 ? std::sqrt(squared_error / static_cast<double>(values)) : 0;
}

double LogitDifference::agreement() const {
  return rows > 0 ? static_cast<double>(same_argmax) / static_cast<double>(rows) : 1;
}

int64_t LogitDifference::differing_beyond(double noise) const {
  return std::count_if(gaps_where_argmax_differs.begin(), gaps_where_argmax_differs.end(),
                       [&](double gap) { return gap > noise; });
}

}  // namespace weir

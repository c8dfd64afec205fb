#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weir {

// How far two engines' logits for the same tokens are apart, over all rows added.
struct LogitDifference {
  double max_abs = 0;
  double squared_error = 0, squared_value = 0;
  int64_t rows = 0, values = 0, same_argmax = 0;
  // Of the rows whose argmax differs: the reference's gap between its own best logit and the one
  // that the other engine prefers.
  std::vector<double> gaps_where_argmax_differs;

  // One row of n_vocab logits from each. A NaN on either side is an infinite difference.
  void add(std::span<const float> reference, std::span<const float> other);

  // Sum of squared differences over the sum of squared reference logits; infinite if either is not
  // a number.
  double nmse() const;
  // Root of the mean squared difference of a logit.
  double rms() const;
  double agreement() const;
  int64_t differing_beyond(double noise) const;
};

}  // namespace weir

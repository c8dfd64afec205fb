#include "kv/return_ages.h"

#include <algorithm>
#include <cmath>

namespace weir {

void ReturnAges::leave(uint64_t time) {
  absences_.push_back({.left = time});
  if (absences_.size() <= kRemembered) return;
  const bool was_counted = absences_.front().is_over;
  absences_.pop_front();
  if (was_counted) count();
}

// Nobody knows which absence it was: the nearest in time that is not over.
void ReturnAges::come_back(uint64_t time, uint64_t now) {
  const auto distance = [&](const Absence& a) {
    return a.is_over ? UINT64_MAX : a.left > time ? a.left - time : time - a.left;
  };
  const auto found = std::min_element(
      absences_.begin(), absences_.end(),
      [&](const Absence& a, const Absence& b) { return distance(a) < distance(b); });
  if (found == absences_.end() || found->is_over) return;
  found->is_over = true;
  found->age = now - std::min(now, found->left);
  count();
}

void ReturnAges::count() {
  ages_.clear();
  for (const Absence& a : absences_) {
    if (a.is_over) ages_.push_back(static_cast<double>(a.age));
  }
  std::sort(ages_.begin(), ages_.end());
  sums_.assign(ages_.size() + 1, 0);
  for (size_t i = ages_.size(); i-- > 0;) sums_[i] = sums_[i + 1] + ages_[i];
}

ReturnAges::Rates ReturnAges::rates(uint64_t now) const {
  Rates rates;
  rates.ages_ = this;
  const double longest = ages_.empty() ? -1 : ages_.back();
  rates.gone_ =
      static_cast<double>(std::count_if(absences_.begin(), absences_.end(), [&](const Absence& a) {
        return !a.is_over && static_cast<double>(now - std::min(now, a.left)) > longest;
      }));
  return rates;
}

// Events by time at risk: those that came back later than `age` waited their age less this one.
// Each that never did counts as waiting as long again, and so does one imagined return.
double ReturnAges::Rates::operator()(uint64_t age) const {
  const double a = static_cast<double>(age);
  const std::vector<double>& ages = ages_->ages_;
  const auto later = std::upper_bound(ages.begin(), ages.end(), a);
  const double returns = static_cast<double>(ages.end() - later);
  const double waited =
      ages.empty() ? 0 : ages_->sums_[static_cast<size_t>(later - ages.begin())] - returns * a;
  return (1 + returns) / ((a + 1) * (1 + gone_) + waited);
}

}  // namespace weir

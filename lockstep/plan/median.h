// The middle of some numbers.
#pragma once

#include <algorithm>
#include <vector>

#include "lockstep/base/check.h"

namespace lockstep::plan {

// Of an even number of them: the mean of both in the middle. There is at least one.
inline double median(std::vector<double> values) {
  LOCKSTEP_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace lockstep::plan

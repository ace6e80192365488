#include "lockstep/nn/multiplied_linear.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::nn {

MultipliedLinear::MultipliedLinear(std::unique_ptr<Linear> inner, std::vector<MultipliedColumns> columns)
    : Linear(Parameter()), inner_(std::move(inner)), columns_(std::move(columns)) {}

at::Tensor MultipliedLinear::forward(const at::Tensor& x, Saved* saved) {
  at::Tensor y = inner_->forward(x, saved);
  multiply_columns(y);
  return y;
}

at::Tensor MultipliedLinear::backward_input(const at::Tensor& dy, Saved& saved) {
  multiply_columns(dy);
  return inner_->backward_input(dy, saved);
}

Pending MultipliedLinear::start_backward_input(const at::Tensor& dy, Saved& saved) {
  multiply_columns(dy);
  return inner_->start_backward_input(dy, saved);
}

void MultipliedLinear::multiply_columns(const at::Tensor& y) const {
  const int64_t width = y.size(-1);
  int64_t begin = 0;
  for (const MultipliedColumns& part : columns_) {
    LOCKSTEP_CHECK(begin + part.columns <= width, "columns ", begin, " + ", part.columns, " of ", width);
    if (part.factor != 1) y.narrow(-1, begin, part.columns).mul_(part.factor);
    begin += part.columns;
  }
  LOCKSTEP_CHECK_EQ(begin, width);
}

std::unique_ptr<Linear> multiplied(std::unique_ptr<Linear> inner, std::vector<MultipliedColumns> columns) {
  const auto is_one = [](const MultipliedColumns& part) { return part.factor == 1; };
  if (std::ranges::all_of(columns, is_one)) return inner;
  return std::make_unique<MultipliedLinear>(std::move(inner), std::move(columns));
}

}  // namespace lockstep::nn

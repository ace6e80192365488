#include "lockstep/nn/device_rows.h"

#include "lockstep/base/check.h"

namespace lockstep::nn {
namespace {

// [T, k, 1]
at::Tensor weights_of(const DeviceRouting& routing) { return routing.weight.unsqueeze(2); }

// rows [T k, D] -> [T, k, D]
at::Tensor by_row(const at::Tensor& rows, const DeviceRouting& routing) {
  return rows.view({routing.rows(), routing.per_token(), rows.size(1)});
}

}  // namespace

at::Tensor repeat_rows(const at::Tensor& x, const DeviceRouting& routing) {
  const int64_t rows = routing.rows(), each = routing.per_token(), width = x.size(1);
  LOCKSTEP_CHECK_EQ(x.size(0), rows, "own rows");
  return x.unsqueeze(1).expand({rows, each, width}).reshape({rows * each, width});
}

at::Tensor sum_repeated(const at::Tensor& sent, const DeviceRouting& routing, bool weighted, const at::Tensor& base) {
  LOCKSTEP_CHECK_EQ(sent.size(0), routing.rows() * routing.per_token(), "rows of assignments");
  at::Tensor values = by_row(sent, routing).to(at::kFloat);
  if (weighted) values = values.mul(weights_of(routing));
  const at::Tensor sum = values.sum(1);
  return (base.defined() ? base.add(sum) : sum).to(sent.scalar_type());
}

WeightedGradients sum_repeated_backward(const at::Tensor& dy, const at::Tensor& outputs, const DeviceRouting& routing) {
  LOCKSTEP_CHECK_EQ(dy.size(0), routing.rows(), "own rows");
  const at::Tensor wide = dy.to(at::kFloat).unsqueeze(1);  // [T, 1, D]
  return {.outputs = wide.mul(weights_of(routing)).to(dy.scalar_type()).reshape(outputs.sizes()),
          .weights = wide.mul(by_row(outputs, routing).to(at::kFloat)).sum(2).reshape({-1})};
}

}  // namespace lockstep::nn

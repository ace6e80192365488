#include "lockstep/nn/linear.h"

#include <utility>
#include <vector>

#include "lockstep/nn/accumulate.h"
#include "lockstep/nn/gemm.h"

namespace lockstep::nn {

at::Tensor flatten_rows(const at::Tensor& x) {
  return x.view({-1, x.size(-1)});
}

at::Tensor unflatten_rows(const at::Tensor& rows, const at::Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = rows.size(1);
  return rows.view(shape);
}

Linear::Linear(Parameter weight, Parameter bias) : weight_(std::move(weight)), bias_(std::move(bias)) {}

at::Tensor Linear::forward(const at::Tensor& x, Saved* saved) {
  if (saved) saved->x = x;
  return unflatten_rows(multiply(flatten_rows(x), weight_.value.t(), bias_.value), x);
}

Pending Linear::start_backward_input(const at::Tensor& dy, Saved& saved) {
  saved.dy = dy;
  return [dx = unflatten_rows(multiply(flatten_rows(dy), weight_.value), dy)] { return dx; };
}

void Linear::backward_weight(Saved& saved) {
  const at::Tensor dy = flatten_rows(saved.dy);
  accumulate_matmul(weight_.grad, dy.t(), flatten_rows(saved.x));
  if (bias_.defined()) accumulate_row_sum(bias_.grad, dy);
  saved = {};
}

}  // namespace lockstep::nn

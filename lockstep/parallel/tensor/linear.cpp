#include "lockstep/parallel/tensor/linear.h"

#include <utility>

#include "lockstep/nn/accumulate.h"
#include "lockstep/nn/gemm.h"

namespace lockstep::parallel {

using nn::flatten_rows;
using nn::unflatten_rows;
using program::CallPhase;

ColumnParallelLinear::ColumnParallelLinear(nn::Parameter weight, nn::Parameter bias, TensorGroup& group,
                                           const program::CallId& calls)
    : Linear(std::move(weight), std::move(bias)), group_(group), calls_(calls) {}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& x, Saved* saved) {
  if (!group_.sequence_parallel()) return Linear::forward(x, saved);
  if (saved) saved->x = x;
  const at::Tensor whole = group_.gather_rows(x, group_.rows(), calls_.with(CallPhase::kForward))();
  return nn::multiply(whole, weight_.value.t(), bias_.value);
}

at::Tensor ColumnParallelLinear::backward_input(const at::Tensor& dy, Saved& saved) {
  saved.dy = dy;
  return input_gradient(dy, TensorGroup::When::kNow)();
}

nn::Pending ColumnParallelLinear::start_backward_input(const at::Tensor& dy, Saved& saved) {
  saved.dy = dy;
  if (group_.sequence_parallel()) whole_x_ = gather_input(saved, TensorGroup::When::kBeside);
  return input_gradient(dy, TensorGroup::When::kBeside);
}

void ColumnParallelLinear::backward_weight(Saved& saved) {
  if (group_.sequence_parallel()) {
    if (!whole_x_) whole_x_ = gather_input(saved, TensorGroup::When::kNow);
    saved.x = std::exchange(whole_x_, {})();
  }
  Linear::backward_weight(saved);
}

nn::Pending ColumnParallelLinear::input_gradient(const at::Tensor& dy, TensorGroup::When when) {
  const at::Tensor dx = nn::multiply(flatten_rows(dy), weight_.value);
  return group_.reduce_output(unflatten_rows(dx, dy), calls_.with(CallPhase::kBackward), when);
}

nn::Pending ColumnParallelLinear::gather_input(const Saved& saved, TensorGroup::When when) {
  return group_.gather_rows(saved.x, flatten_rows(saved.dy).size(0), calls_.with(CallPhase::kGather), when);
}

RowParallelLinear::RowParallelLinear(nn::Parameter weight, nn::Parameter bias, TensorGroup& group,
                                     const program::CallId& calls)
    : Linear(std::move(weight), std::move(bias)), group_(group), calls_(calls) {}

at::Tensor RowParallelLinear::forward(const at::Tensor& x, Saved* saved) {
  if (saved) saved->x = x;
  // The bias enters the sum once.
  const at::Tensor bias = group_.rank() == 0 ? bias_.value : at::Tensor();
  const at::Tensor partial = nn::multiply(flatten_rows(x), weight_.value.t(), bias);
  return group_.reduce_output(unflatten_rows(partial, x), calls_.with(CallPhase::kForward))();
}

nn::Pending RowParallelLinear::start_backward_input(const at::Tensor& dy, Saved& saved) {
  if (!group_.sequence_parallel()) return Linear::start_backward_input(dy, saved);
  const int64_t rows = flatten_rows(saved.x).size(0);
  return Linear::start_backward_input(group_.gather_rows(dy, rows, calls_.with(CallPhase::kBackward))(), saved);
}

void RowParallelLinear::backward_weight(Saved& saved) {
  if (!group_.sequence_parallel()) return Linear::backward_weight(saved);
  const at::Tensor dy = flatten_rows(saved.dy);
  nn::accumulate_matmul(weight_.grad, dy.t(), flatten_rows(saved.x));
  if (bias_.defined()) {
    const mesh::Range here = group_.local_rows(dy.size(0));
    nn::accumulate_row_sum(bias_.grad, dy.narrow(0, here.begin, here.size()));
  }
  saved = {};
}

}  // namespace lockstep::parallel

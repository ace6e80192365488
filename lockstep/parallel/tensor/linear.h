// Linear layers cut over the tp axis (Shoeybi et al. 2019, section 3; with sequence parallelism Korthikanti et al. 2022,
// section 4.2). In pairs: what a column-parallel linear leaves apart, a row-parallel one puts together.
#pragma once

#include "lockstep/nn/linear.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

// y = x W^T + b, W cut by outputs: weight [N/tp, K], bias [N/tp]. M = B S rows.
//   without sequence parallelism   x [B, S, K] on every rank -> [B, S, N/tp]
//                                  forward: nothing / backward: all_reduce of dx
//   with it                        x [M/tp, K] -> [M, N/tp]
//                                  forward: all_gather(rows) / backward: reduce_scatter(rows) of dx, and all_gather(rows)
//                                  of x once more for the weight gradient, as only the part of x is kept: beside that of
//                                  dx where the weight gradient follows, else with it
class ColumnParallelLinear : public nn::Linear {
 public:
  ColumnParallelLinear(nn::Parameter weight, nn::Parameter bias, TensorGroup& group, const program::CallId& calls);

  at::Tensor forward(const at::Tensor& x, Saved* saved) override;  // of TensorGroup::rows()
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved) override;
  nn::Pending start_backward_input(const at::Tensor& dy, Saved& saved) override;
  void backward_weight(Saved& saved) override;

 private:
  nn::Pending input_gradient(const at::Tensor& dy, TensorGroup::When when);
  nn::Pending gather_input(const Saved& saved, TensorGroup::When when);

  TensorGroup& group_;
  const program::CallId calls_;  // without a pass
  nn::Pending whole_x_{};        // from start_backward_input, for the backward_weight that follows at once
};

// y = sum over ranks of x W^T, + b once: W cut by inputs, weight [N, K/tp], bias [N] on every rank.
//   without sequence parallelism   x [B, S, K/tp] -> [B, S, N]
//                                  forward: all_reduce / backward: nothing
//   with it                        x [M, K/tp] -> [M/tp, N]
//                                  forward: reduce_scatter(rows) / backward: all_gather(rows) of dy;
//                                  the bias gradient is that of this rank's rows (Partial)
class RowParallelLinear : public nn::Linear {
 public:
  RowParallelLinear(nn::Parameter weight, nn::Parameter bias, TensorGroup& group, const program::CallId& calls);

  at::Tensor forward(const at::Tensor& x, Saved* saved) override;
  nn::Pending start_backward_input(const at::Tensor& dy, Saved& saved) override;
  void backward_weight(Saved& saved) override;

 private:
  TensorGroup& group_;
  const program::CallId calls_;  // without a pass
};

}  // namespace lockstep::parallel

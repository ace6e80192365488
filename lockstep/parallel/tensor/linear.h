// Linear layers cut over the tp axis (Shoeybi et al. 2019, section 3; with sequence parallelism Korthikanti et al. 2022,
// section 4.2). In pairs: what a column-parallel linear leaves apart, a row-parallel one puts together.
//
// An engine hands them parts of its flat buffers. Alone they are made of a group and sizes, with parameters of their own:
//   const auto communicator = world.all_ranks("tp");
//   TensorGroup group(*communicator, {});
//   ColumnParallelLinear up(group, {.name = "up", .in = 64, .out = 256});
//   RowParallelLinear down(group, {.name = "down", .in = 256, .out = 64});
// A forward pass keeps what its two backward passes need in a Saved: backward_input gives dx, backward_weight adds to weight().grad.
#pragma once

#include <string_view>

#include "lockstep/nn/linear.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

// Of a layer that is made alone. The parts of its parameters have the values of the whole ones, whatever the number of ranks: "NAME.weight"
// [out, in] of normal numbers, "NAME.bias" [out] of zeros (own_parameter.h).
struct LinearSizes {
  std::string_view name{};  // of parameters, and of calls in ledgers and messages
  int64_t in = 0;           // K, of the whole layer; need not divide
  int64_t out = 0;          // N
  bool bias = true;
  double init_std = 0.02;
  uint64_t seed = 1234;
  at::TensorOptions options = at::kFloat;
};

// y = x W^T + b, W cut by outputs: weight [N/tp, K], bias [N/tp]. M = B S rows.
//   without sequence parallelism   x [B, S, K] on every rank -> [B, S, N/tp]
//                                  forward: nothing / backward: all_reduce of dx
//   with it                        x [M/tp, K] -> [M, N/tp]
//                                  forward: all_gather(rows) / backward: reduce_scatter(rows) of dx, and all_gather(rows)
//                                  of x once more for the weight gradient, as only the part of x is kept: beside that of
//                                  dx where the weight gradient follows, else with it
//   gather_output                  [..., N] on every rank instead of [..., N/tp]: the lone linear
//                                  forward: all_gather(outputs) / backward: this rank's outputs of dy, which all ranks have alike
class ColumnParallelLinear : public nn::Linear {
 public:
  struct Options {
    bool gather_output = false;
  };
  ColumnParallelLinear(nn::Parameter weight, nn::Parameter bias, TensorGroup& group, const program::CallId& calls);
  ColumnParallelLinear(TensorGroup& group, const LinearSizes& sizes) : ColumnParallelLinear(group, sizes, Options()) {}
  ColumnParallelLinear(TensorGroup& group, const LinearSizes& sizes, Options options);

  const nn::Parameter& weight() const { return weight_; }
  const nn::Parameter& bias() const { return bias_; }

  at::Tensor forward(const at::Tensor& x, Saved* saved) override;  // of TensorGroup::rows()
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved) override;
  nn::Pending start_backward_input(const at::Tensor& dy, Saved& saved) override;
  void backward_weight(Saved& saved) override;

 private:
  nn::Pending input_gradient(const at::Tensor& dy, TensorGroup::When when);
  nn::Pending gather_input(const Saved& saved, TensorGroup::When when);
  at::Tensor part(const at::Tensor& x, Saved* saved);  // [..., N/tp]
  at::Tensor own(const at::Tensor& dy) const;

  TensorGroup& group_;
  const program::CallId calls_;  // without a pass
  const int64_t gathered_ = 0;   // N, where the output is gathered
  nn::Pending whole_x_{};        // from start_backward_input, for the backward_weight that follows at once
};

// y = sum over ranks of x W^T, + b once: W cut by inputs, weight [N, K/tp], bias [N] on every rank.
//   without sequence parallelism   x [B, S, K/tp] -> [B, S, N]
//                                  forward: all_reduce / backward: nothing
//   with it                        x [M, K/tp] -> [M/tp, N]
//                                  forward: reduce_scatter(rows) / backward: all_gather(rows) of dy;
//                                  the bias gradient is that of this rank's rows (Partial)
//   input_is_parallel = false      x [..., K], which all ranks have alike
//                                  forward: this rank's inputs of x / backward: all_gather(inputs) of dx
class RowParallelLinear : public nn::Linear {
 public:
  struct Options {
    bool input_is_parallel = true;
  };
  RowParallelLinear(nn::Parameter weight, nn::Parameter bias, TensorGroup& group, const program::CallId& calls);
  RowParallelLinear(TensorGroup& group, const LinearSizes& sizes) : RowParallelLinear(group, sizes, Options()) {}
  RowParallelLinear(TensorGroup& group, const LinearSizes& sizes, Options options);

  const nn::Parameter& weight() const { return weight_; }
  const nn::Parameter& bias() const { return bias_; }

  at::Tensor forward(const at::Tensor& x, Saved* saved) override;
  nn::Pending start_backward_input(const at::Tensor& dy, Saved& saved) override;
  void backward_weight(Saved& saved) override;

 private:
  nn::Pending part_of_input_gradient(const at::Tensor& dy, Saved& saved);

  TensorGroup& group_;
  const program::CallId calls_;  // without a pass
  const int64_t divided_ = 0;    // K, where x comes whole
};

}  // namespace lockstep::parallel

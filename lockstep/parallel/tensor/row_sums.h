// Sums of rows whose columns lie on the ranks of tp (nn/row_sums.h).
#pragma once

#include "lockstep/nn/row_sums.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

// forward: all_reduce / backward: all_reduce, of all rows, whatever part of them norms act on.
class TensorRowSums : public nn::RowSums {
 public:
  TensorRowSums(TensorGroup& group, const program::CallId& calls);  // of one part, without a phase; the group outlives it
  void sum_forward(const at::Tensor& numbers) override;
  void sum_backward(const at::Tensor& numbers) override;

 private:
  void sum(const at::Tensor& numbers, program::CallPhase phase);

  TensorGroup& group_;
  const program::CallId calls_;
};

}  // namespace lockstep::parallel

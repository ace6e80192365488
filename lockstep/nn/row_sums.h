// Sums of a row whose columns have several holders, which a norm over the row needs. parallel/tensor has the class for several of them.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

class RowSums {
 public:
  virtual ~RowSums() = default;
  // numbers [rows, n] fp32 contiguous, of the columns here of all rows -> in place of all columns. Every holder makes the same calls;
  // forward's and backward's calls have names of their own.
  virtual void sum_forward(const at::Tensor& numbers) = 0;
  virtual void sum_backward(const at::Tensor& numbers) = 0;
};

}  // namespace lockstep::nn

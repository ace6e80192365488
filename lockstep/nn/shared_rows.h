// Rows of a microbatch that several ranks share, and what each of them makes a part of. The class itself is one rank that has all;
// parallel/tensor derives the one of several.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

class SharedRows {
 public:
  virtual ~SharedRows() = default;
  // forward: own rows, [rows here, N] or [B, S, N] where each rank has them all -> those of all ranks.
  virtual at::Tensor gather(const at::Tensor& own) { return own; }
  // backward: [B S, N] of all rows, a part of a sum over the ranks -> the sum, of own rows. May be the memory of `whole`.
  virtual at::Tensor reduce(const at::Tensor& whole) { return whole; }
};

}  // namespace lockstep::nn

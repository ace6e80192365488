// Rows of a microbatch of which others may have some, and what each makes a part of. The class itself has them all; parallel/tensor
// derives the one of several.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

class SharedRows {
 public:
  virtual ~SharedRows() = default;
  // forward: own rows, [rows here, N] or [B, S, N] where each has them all -> those of all.
  virtual at::Tensor gather(const at::Tensor& own) { return own; }
  // backward: [B S, N] of all rows, a part of a sum over all who share them -> the sum, of own rows. May be the memory of `whole`.
  virtual at::Tensor reduce(const at::Tensor& whole) { return whole; }
};

}  // namespace lockstep::nn

// Where a parameter lies in a tensor of a Hugging Face model directory.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/arch/hf_names.h"

namespace lockstep::checkpoint {

// A view of `stored`, which has the shape of `tensor` and is contiguous: that of the part, or where its rows do not lie side by side
// [runs, run] + the other sizes of the part, whose elements are those of the part in its order.
inline at::Tensor hf_place(const at::Tensor& stored, const arch::HfTensor& tensor, const arch::HfPart& part) {
  at::Tensor outputs;
  if (part.shape.size() == 1) outputs = stored.dim() == 1 ? stored : stored.select(0, part.matrix);
  else if (tensor.transposed) outputs = stored.view({-1, stored.size(-2), stored.size(-1)}).select(0, part.matrix).t();
  else outputs = stored.view({-1, stored.size(-1)});
  if (part.run == 0) return outputs.narrow(0, part.row, part.shape[0]);
  const int64_t span = (part.shape[0] / part.run - 1) * part.step + part.run;
  const at::Tensor runs = outputs.narrow(0, part.row, span).unfold(0, part.run, part.step);  // [runs, columns, run] of a matrix
  return runs.dim() == 3 ? runs.transpose(1, 2) : runs;
}

}  // namespace lockstep::checkpoint

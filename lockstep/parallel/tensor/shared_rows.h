// Rows that the ranks of tp share under sequence parallelism, and sums of which each makes a part: what a layer has between linears that
// are cut over tp and ones that are whole.
#pragma once

#include "lockstep/nn/shared_rows.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

//   without sequence parallelism   forward: nothing / backward: all_reduce
//   with it                        forward: all_gather(rows) / backward: reduce_scatter(rows)
class TensorSharedRows : public nn::SharedRows {
 public:
  TensorSharedRows(TensorGroup& group, const program::CallId& calls);  // of one part, without a phase
  at::Tensor gather(const at::Tensor& own) override;
  at::Tensor reduce(const at::Tensor& whole) override;

 private:
  TensorGroup& group_;
  const program::CallId calls_;
};

}  // namespace lockstep::parallel

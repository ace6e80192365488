#include "lockstep/parallel/tensor/shared_rows.h"

namespace lockstep::parallel {

using program::CallPhase;

TensorSharedRows::TensorSharedRows(TensorGroup& group, const program::CallId& calls) : group_(group), calls_(calls) {}

at::Tensor TensorSharedRows::gather(const at::Tensor& own) {
  if (!group_.sequence_parallel()) return own;
  return group_.gather_rows(own, group_.rows(), calls_.with(CallPhase::kForward))();
}

at::Tensor TensorSharedRows::reduce(const at::Tensor& whole) {
  return group_.reduce_output(whole, calls_.with(CallPhase::kBackward))();
}

}  // namespace lockstep::parallel

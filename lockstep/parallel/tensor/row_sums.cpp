#include "lockstep/parallel/tensor/row_sums.h"

#include "lockstep/base/check.h"

namespace lockstep::parallel {

using program::CallPhase;

TensorRowSums::TensorRowSums(TensorGroup& group, const program::CallId& calls) : group_(group), calls_(calls) {}

void TensorRowSums::sum_forward(const at::Tensor& numbers) { sum(numbers, CallPhase::kForward); }
void TensorRowSums::sum_backward(const at::Tensor& numbers) { sum(numbers, CallPhase::kBackward); }

void TensorRowSums::sum(const at::Tensor& numbers, CallPhase phase) {
  LOCKSTEP_CHECK(numbers.is_contiguous() && numbers.scalar_type() == at::kFloat, "sums of ", numbers.scalar_type(), " numbers");
  group_.all_reduce(numbers, calls_.with(phase))();
}

}  // namespace lockstep::parallel

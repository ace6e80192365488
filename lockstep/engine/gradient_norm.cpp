// The norm of the summed gradients.
#include <ATen/ops/full.h>

#include <map>

#include "lockstep/engine/gradient_reducer.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::engine {

using program::PlannedCall;

// Each parameter once: of tensor parallel copies on the first, a tied unit where its layer is.
std::vector<at::Tensor> GradientReducer::gradients_of_norm() const {
  const int rank = step_.groups.rank();
  std::map<arch::ParameterGroup, bool> counts;
  std::vector<at::Tensor> gradients;
  for (const ParameterStore::Piece& piece : step_.store.gradient_pieces()) {
    const arch::ParamSpec& spec = step_.store.table()[static_cast<size_t>(piece.param)];
    const auto [group, fresh] = counts.try_emplace(spec.group);
    if (fresh) group->second = step_.layout.counts_in_norm(rank, spec.group);
    if (group->second && spec.in_norm && spec.copy == 0 && step_.layout.holds(rank, spec.layer)) gradients.push_back(piece.values);
  }
  return gradients;
}

GradientReducer::Norm GradientReducer::start_norm(const PlannedCall* sum, bool blocking) {
  wait_for_host_sums();
  const std::vector<at::Tensor> gradients = gradients_of_norm();
  Norm norm{.here = optim::gradient_norm(gradients)};
  if (!sum) return norm;
  norm.square = at::full({1}, norm.here * norm.here, at::kDouble);
  norm.joined = waiting_for(execute(step_.groups, *sum, {.input = norm.square}, blocking), step_.waits, "norm");
  return norm;
}

}  // namespace lockstep::engine

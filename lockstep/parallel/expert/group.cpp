#include "lockstep/parallel/expert/group.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/check.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::parallel {

ExpertGroup::ExpertGroup(comm::Communicator& communicator, int ep, int etp, bool overlap)
    : communicator_(communicator), ep_(ep), etp_(etp), overlap_(overlap) {
  LOCKSTEP_CHECK(ep > 0 && etp > 0 && ep * etp == communicator.size(), "ep ", ep, " and etp ", etp, " over ",
                 communicator.size(), " ranks");
}

mesh::Range ExpertGroup::experts_of(int64_t experts, int ep_rank) const {
  LOCKSTEP_CHECK_EQ(experts % ep_, 0, experts, " experts on ", ep_, " ranks");
  const int64_t part = experts / ep_;
  return {.begin = part * ep_rank, .end = part * (ep_rank + 1)};
}

std::vector<std::vector<int64_t>> ExpertGroup::gather_counts(const std::vector<int64_t>& mine, const program::CallId& id) {
  if (size() == 1) return {mine};
  const auto experts = static_cast<int64_t>(mine.size());
  const at::TensorOptions options(at::kLong);
  const at::Tensor own = at::empty({experts}, options), all = at::empty({experts * size()}, options);
  std::copy(mine.begin(), mine.end(), own.mutable_data_ptr<int64_t>());
  const program::PlannedCall call =
      program::tensor_call(id, program::Collective::kAllGather, all.numel(), static_cast<int64_t>(sizeof(int64_t)), size());
  comm::Work work = communicator_.all_gather(own, all, {.id = call.id, .algorithm = call.algorithm, .blocking = true});
  work.wait();
  exposed_["all_gather"] += work.exposed_seconds();
  std::vector<std::vector<int64_t>> counts;
  const auto* from = all.const_data_ptr<int64_t>();
  for (int rank = 0; rank < size(); ++rank, from += experts) counts.emplace_back(from, from + experts);
  return counts;
}

nn::Pending ExpertGroup::exchange(const at::Tensor& rows, const std::vector<int64_t>& sent, const std::vector<int64_t>& received,
                                  const program::CallId& id) {
  const int64_t come = std::accumulate(received.begin(), received.end(), int64_t{0});
  at::Tensor arrived = at::empty({come, rows.size(1)}, rows.options());
  comm::Work work = communicator_.all_to_all_v(
      rows, arrived, sent, received, {.id = id, .algorithm = program::Algorithm::kDirect, .blocking = !overlap_});
  return [this, work = std::move(work), arrived]() mutable {
    work.wait();
    exposed_["all_to_all"] += work.exposed_seconds();
    return std::move(arrived);
  };
}

}  // namespace lockstep::parallel

#include "lockstep/parallel/expert/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/check.h"
#include "lockstep/parallel/expert/routes.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::parallel {

ExpertGroup::ExpertGroup(comm::Communicator& communicator, int ep, int etp, const DispatchOptions& options)
    : communicator_(communicator), ep_(ep), etp_(etp), options_(options) {
  LOCKSTEP_CHECK(ep > 0 && etp > 0 && ep * etp == communicator.size(), "ep ", ep, " and etp ", etp, " over ",
                 communicator.size(), " ranks");
  if (options.dispatcher != config::Dispatcher::kHierarchical || size() == 1) return;
  LOCKSTEP_CHECK(options.nodes && options.node && options.nodes->size() * options.node->size() == size(), "nodes of ", size(), " ranks");
}

mesh::Range ExpertGroup::experts_of(int64_t experts, int ep_rank) const { return part_of_experts(experts, ep_, ep_rank); }

comm::Communicator& ExpertGroup::over(Over over) {
  return over == Over::kAll ? communicator_ : over == Over::kNodes ? *options_.nodes : *options_.node;
}

comm::CallOptions ExpertGroup::call(const program::CallId& id) const {
  return {.id = id, .algorithm = program::Algorithm::kDirect, .blocking = !options_.overlap};
}

nn::Pending ExpertGroup::pending(comm::Work work, const char* what, at::Tensor result) {
  return [this, work = std::move(work), what, result = std::move(result)]() mutable {
    work.wait();
    exposed_[what] += work.exposed_seconds();
    return std::move(result);
  };
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

at::Tensor ExpertGroup::gather_numbers(const std::vector<double>& mine, int64_t most, const program::CallId& id) {
  const at::TensorOptions options(at::kDouble);
  const at::Tensor own = at::zeros({most}, options), all = at::empty({size(), most}, options);
  LOCKSTEP_CHECK(std::ssize(mine) <= most, program::call_text(id), ": ", mine.size(), " numbers, most ", most);
  std::copy(mine.begin(), mine.end(), own.mutable_data_ptr<double>());
  comm::Work work = communicator_.all_gather(own, all, {.id = id, .algorithm = program::Algorithm::kDirect, .blocking = true});
  return pending(std::move(work), "all_gather", all)();
}

nn::Pending ExpertGroup::exchange(const at::Tensor& rows, const std::vector<int64_t>& sent, const std::vector<int64_t>& received,
                                  const program::CallId& id, Over ranks) {
  const int64_t come = std::accumulate(received.begin(), received.end(), int64_t{0});
  const at::Tensor arrived = at::empty({come, rows.size(1)}, rows.options());
  return pending(over(ranks).all_to_all_v(rows, arrived, sent, received, call(id)), "all_to_all", arrived);
}

nn::Pending ExpertGroup::gather_rows(const at::Tensor& rows, int64_t most, const program::CallId& id) {
  at::Tensor part = rows;
  if (rows.size(0) < most) {
    part = at::zeros({most, rows.size(1)}, rows.options());
    part.narrow(0, 0, rows.size(0)).copy_(rows);
  }
  const at::Tensor all = at::empty({most * size(), rows.size(1)}, rows.options());
  return pending(communicator_.all_gather(part, all, call(id)), "all_gather", all);
}

nn::Pending ExpertGroup::scatter_rows(const at::Tensor& sums, const program::CallId& id) {
  const at::Tensor own = at::empty({sums.size(0) / size(), sums.size(1)}, sums.options());
  return pending(communicator_.reduce_scatter(sums, own, call(id)), "reduce_scatter", own);
}

}  // namespace lockstep::parallel

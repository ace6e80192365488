// Brings rows to experts on other ranks and back. Own rows are those of this rank's part of every sequence (cp), and of them its part over
// tp, whatever the layers between hold: no row is routed twice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/expert_exchange.h"
#include "lockstep/parallel/context/group.h"
#include "lockstep/parallel/expert/group.h"
#include "lockstep/parallel/expert/routes.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

// T own rows, N assignments of them, R rows that come; M = B S / cp rows of the microbatch here, G = ep x etp. Every rank of a group makes
// the same calls, whatever its counts are:
//   plan            all_gather of [E] int64: every rank knows all counts. Where tokens are spread T too, and then all_gather of [N, 2]
//                   fp64, the row and the weight of every assignment
//   dispatch        all_to_all of [N etp, D], unequal parts: an assignment's row goes to each rank that holds a part of its expert
//   combine         the same way back; the etp results of an assignment are added in rank order, in fp32, and rounded once
//   spread          dispatcher all_gather: all_gather of [T, D]. hierarchical: all_to_all of unequal parts over nodes, one copy of a
//                   row to each, then inside the node to the ranks that have its experts
//   collect         reduce_scatter of [G T, D], in rank order; or the two steps back, each with the sum of what comes of a row, in fp32
//   return_weights  reduce_scatter of [G N] fp32
//   gather_scores   all_gather(rows) over tp, fp32 [M, E]; then all_gather of these over cp, and each row goes to its place
//   give_all        without sequence parallelism all_gather(rows) over tp, [M, D]; with it nothing
// With DispatchOptions::slots no counts are told: each expert gets so many rows of each rank, zeros where there are no more. Which row has
// which slot the device alone may know (slots.h).
// Where more rows would come than DispatchOptions::limit the plan is in as few rounds as have room, each with an equal part of what comes
// to each rank.
class ShardedExchange : public nn::ExpertExchange {
 public:
  // Null: one rank. All outlive the exchange. `block`: whose calls they are; `part` begins their names ("experts" -> "experts.dispatch").
  ShardedExchange(ExpertGroup* experts, TensorGroup* tensor, ContextGroup* context, program::CallId block, std::string part);

  mesh::Range own_rows(int64_t rows) const override;
  mesh::Range own_columns(int64_t width) const override;
  at::Tensor take_own(const at::Tensor& x, int64_t rows) override;
  nn::Pending give_all(const at::Tensor& own, const at::Tensor& like, int64_t rows, nn::ExchangePhase phase) override;
  // InternalError where sequences lie on several ranks and their places are not told.
  at::Tensor gather_scores(const at::Tensor& own, const nn::Sequences& sequences) override;
  int64_t slots() const override { return experts_ ? experts_->options().slots : 0; }
  bool tells_sums() const override { return (!tensor_ || tensor_->rank() == 0) && (!context_ || context_->rank() == 0); }

  std::unique_ptr<Plan> plan(const nn::Routing& own) override;
  nn::Pending dispatch(const at::Tensor& sorted, const Plan& plan, nn::ExchangePhase phase) override;
  nn::Pending combine(const at::Tensor& here, const Plan& plan, nn::ExchangePhase phase) override;
  nn::Pending spread(const at::Tensor& own, const Plan& plan, nn::ExchangePhase phase) override;
  nn::Pending collect(const at::Tensor& sums, const Plan& plan, nn::ExchangePhase phase) override;
  at::Tensor return_weights(const at::Tensor& here, const Plan& plan) override;

 private:
  struct Routes;  // the Plan of several ranks, where rows go one by one
  struct Tokens;  // and where tokens are spread
  program::CallId call(const char* what, nn::ExchangePhase phase) const;

  std::vector<Assigned> gather(const nn::Routing& own);
  void gather_tokens(const nn::Routing& own, std::vector<Assigned>& sources);
  std::unique_ptr<Plan> whole_plan(const std::vector<Assigned>& sources) const;
  std::unique_ptr<Plan> plan_in_rounds(const std::vector<Assigned>& sources, int64_t rounds) const;
  std::unique_ptr<Plan> plan_of_slots(const nn::Routing& own) const;
  std::unique_ptr<Plan> device_plan(std::shared_ptr<const nn::DeviceRouting> routing) const;
  std::unique_ptr<Routes> routes(const std::vector<Assigned>& sources) const;
  std::unique_ptr<Plan> token_plan(const std::vector<Assigned>& sources) const;

  ExpertGroup* experts_;  // null: one rank
  TensorGroup* tensor_;
  ContextGroup* context_;
  const program::CallId block_;
  const std::string part_;
};

}  // namespace lockstep::parallel

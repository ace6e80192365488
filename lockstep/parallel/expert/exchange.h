// Brings rows to experts on other ranks and back. Own rows are cut over tp whatever the layers between hold: no row is routed twice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/expert_exchange.h"
#include "lockstep/parallel/expert/group.h"
#include "lockstep/parallel/tensor/group.h"

namespace lockstep::parallel {

// T own rows, N assignments of them, R rows that come; M = B S rows of the microbatch. Every rank of a group makes the same calls,
// whatever its counts are:
//   plan            all_gather of [E] int64: every rank knows all counts
//   dispatch        all_to_all of [N etp, D], unequal parts: an assignment's row goes to each rank that holds a part of its expert
//   combine         the same way back; the etp results of an assignment are added in rank order, in fp32, and rounded once
//   gather_scores   all_gather(rows) over tp, fp32 [M, E]
//   give_all        without sequence parallelism all_gather(rows) over tp, [M, D]; with it nothing
class ShardedExchange : public nn::ExpertExchange {
 public:
  // Null: one rank. Both outlive the exchange. `block`: whose calls they are; `part` begins their names ("experts" -> "experts.dispatch").
  ShardedExchange(ExpertGroup* experts, TensorGroup* tensor, program::CallId block, std::string part);

  mesh::Range own_rows(int64_t rows) const override;
  at::Tensor take_own(const at::Tensor& x, int64_t rows) override;
  nn::Pending give_all(const at::Tensor& own, const at::Tensor& like, int64_t rows, nn::ExchangePhase phase) override;
  at::Tensor gather_scores(const at::Tensor& own, int64_t rows) override;
  bool tells_sums() const override { return !tensor_ || tensor_->rank() == 0; }

  std::unique_ptr<Plan> plan(const std::vector<int64_t>& counts) override;
  nn::Pending dispatch(const at::Tensor& sorted, const Plan& plan, nn::ExchangePhase phase) override;
  nn::Pending combine(const at::Tensor& here, const Plan& plan, nn::ExchangePhase phase) override;

 private:
  struct Routes;  // the Plan of several ranks
  program::CallId call(const char* what, nn::ExchangePhase phase) const;

  ExpertGroup* experts_;  // null: one rank
  TensorGroup* tensor_;
  const program::CallId block_;
  const std::string part_;
};

// Places of rows that came by source, then by expert, in the order by expert, then by source: [R], to gather with. counts: of each
// source, by local expert. Within a source and an expert the order stays.
std::vector<int64_t> by_expert(const std::vector<std::vector<int64_t>>& counts);

}  // namespace lockstep::parallel

// Who brings rows to the experts that serve them, and back (Shazeer et al. 2017; Lepikhin et al., GShard, 2020). The class itself
// is one rank that has all experts and all rows; parallel/expert derives the one of several ranks.
//
// Shapes: `rows` are the B S rows of a microbatch, T those that this rank routes (its own), E experts, N assignments of own rows
// to experts, R rows that come to the experts of this rank. Pending results are asked for once, and in the order of the calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/mesh/placement.h"
#include "lockstep/nn/linear.h"

namespace lockstep::nn {

enum class ExchangePhase { kForward, kBackward };

class ExpertExchange {
 public:
  // Of one microbatch: what goes where. Outlives the calls that are made with it.
  struct Plan {
    virtual ~Plan() = default;
    std::vector<int64_t> here{};  // rows that come, by local expert; their sum is R
  };
  virtual ~ExpertExchange() = default;

  // Which of so many rows of a microbatch this rank routes.
  virtual mesh::Range own_rows(int64_t rows) const;
  // x as the block has it, [B, S, D] or its rows alone -> [T, D].
  virtual at::Tensor take_own(const at::Tensor& x, int64_t rows);
  // The inverse: own [T, D] of the ranks that share the rows -> shaped as `like`. The result is the caller's alone; `own` may
  // be its memory.
  virtual Pending give_all(const at::Tensor& own, const at::Tensor& like, int64_t rows, ExchangePhase phase);
  // own [T, E] fp32 -> [rows, E], in the order of the rows.
  virtual at::Tensor gather_scores(const at::Tensor& own, int64_t rows);
  // Of ranks that know the same sums over a microbatch, one tells them.
  virtual bool tells_sums() const { return true; }

  // counts [E]: own assignments, by expert. Every rank of the group makes the same calls, whatever its counts are.
  virtual std::unique_ptr<Plan> plan(const std::vector<int64_t>& counts);
  // sorted [N, D] in the order of experts -> [R, D] by local expert, then by source rank, then as sent.
  // forward: x / backward: the gradient of the outputs.
  virtual Pending dispatch(const at::Tensor& sorted, const Plan& plan, ExchangePhase phase);
  // here [R, D] -> [N, D] in the order that was sent, summed over the ranks that share an expert.
  // forward: the outputs / backward: the gradient of x.
  virtual Pending combine(const at::Tensor& here, const Plan& plan, ExchangePhase phase);
};

}  // namespace lockstep::nn

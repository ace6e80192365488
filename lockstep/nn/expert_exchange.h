// Who brings rows to the experts that serve them, and back (Shazeer et al. 2017; Lepikhin et al., GShard, 2020). The class itself
// is one rank that has all experts and all rows; parallel/expert derives the one of several ranks.
//
// Shapes: `rows` are the B S rows of a microbatch, or those of its part of every sequence where several ranks have parts; T those that this
// rank routes (its own), E experts, N assignments of own rows to experts, R rows that come to the experts of this rank. Pending results
// are asked for once, and in the order of the calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/mesh/placement.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/routing.h"

namespace lockstep::nn {

struct Sequences;

enum class ExchangePhase { kForward, kBackward };

class ExpertExchange {
 public:
  struct Round;
  // Of one microbatch: what goes where. Outlives the calls that are made with it.
  struct Plan {
    virtual ~Plan();
    std::vector<int64_t> here{};  // rows that come, by local expert; their sum is R
    // Not null where tokens are spread, one row for all their experts, and weighted and summed where these are: of the U rows of
    // tokens that come here, which go to which local expert.
    std::unique_ptr<const Routing> tokens{};
    // Where more rows would come to a rank than there is room for: rounds, each with a part of the assignments, that are run one after
    // the other, at least two and as many on every rank. `here` and `tokens` are empty then.
    std::vector<Round> rounds{};
    // Rounds beyond the first one, of which one rank tells for all that share them.
    int64_t told_rounds = 0;
  };
  struct Round {
    Routing own{};                  // of the rank's own rows
    std::vector<int64_t> places{};  // of its assignments among those of the whole
    std::unique_ptr<Plan> plan{};
  };
  virtual ~ExpertExchange() = default;

  // Which of so many rows of a microbatch this rank routes.
  virtual mesh::Range own_rows(int64_t rows) const;
  // x as the block has it, [B, S, D] or its rows alone -> [T, D].
  virtual at::Tensor take_own(const at::Tensor& x, int64_t rows);
  // The inverse: own [T, D] of the ranks that share the rows -> shaped as `like`. The result is the caller's alone; `own` may
  // be its memory.
  virtual Pending give_all(const at::Tensor& own, const at::Tensor& like, int64_t rows, ExchangePhase phase);
  // own [T, E] fp32 -> [B S, E] of whole sequences, in their order, also where a rank has a part of each.
  virtual at::Tensor gather_scores(const at::Tensor& own, const Sequences& sequences);
  // Which columns of the experts' outputs [R, D] get their bias here: the ranks that share an expert, whose outputs are added, have each its
  // own. All ranks' parts make up `width`.
  virtual mesh::Range own_columns(int64_t width) const;
  // Of ranks that know the same sums over a microbatch, one tells them.
  virtual bool tells_sums() const { return true; }

  // Rows for each expert in messages of one size, which follows from no count; 0: messages are as long as what is sent.
  virtual int64_t slots() const { return 0; }

  // Of own assignments. Every rank of the group makes the same calls, whatever its assignments are.
  virtual std::unique_ptr<Plan> plan(const Routing& own);

  // Where tokens are not spread. sorted [N, D] in the order of experts -> [R, D] by local expert, then by source rank, then as sent.
  // Of a routing on a device N = T k: all assignments by row, of which dropped ones do not travel and come back as zeros.
  // forward: x / backward: the gradient of the outputs.
  virtual Pending dispatch(const at::Tensor& sorted, const Plan& plan, ExchangePhase phase);
  // here [R, D] -> [N, D] in the order that was sent, summed over the ranks that share an expert.
  // forward: the outputs / backward: the gradient of x.
  virtual Pending combine(const at::Tensor& here, const Plan& plan, ExchangePhase phase);

  // Where they are; InternalError else. own [T, D] -> [U, D], in the order of plan.tokens.
  // forward: x / backward: the gradient of the sums.
  virtual Pending spread(const at::Tensor& own, const Plan& plan, ExchangePhase phase);
  // The inverse: sums [U, D] of what the experts here add -> [T, D], summed over the ranks.
  // forward: weighted outputs / backward: the gradient of x.
  virtual Pending collect(const at::Tensor& sums, const Plan& plan, ExchangePhase phase);
  // backward: gradients [R] fp32 of the weights, in the order of plan.tokens -> [N] of own assignments.
  virtual at::Tensor return_weights(const at::Tensor& here, const Plan& plan);
};

}  // namespace lockstep::nn

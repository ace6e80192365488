// An update of AdamW held against its formula (Loshchilov and Hutter 2019, algorithm 2), element by element in fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/engine/executor.h"

namespace lockstep::train {

// One element of what an update changes.
struct AdamWState {
  double value = 0, exp_avg = 0, exp_avg_sq = 0;
};

struct AdamWFormula {
  double lr = 0, weight_decay = 0, beta1 = 0, beta2 = 0, eps = 0;
  double correction1 = 1, correction2 = 1;  // 1 - beta^step, steps counted from 1
  double scale = 1;                         // clipping factor / tokens of the global batch: the gradient is a sum

  struct Result {
    AdamWState state;
    AdamWState rounding;  // what fp32 arithmetic may be off by: each operation by 2^-24 of its result
  };
  Result update(const AdamWState& before, double gradient) const;
};

// The error = largest |found - formula| / rounding, over value, both moments and the compute copy, which must be the rounded
// value to the bit (a copy that is not has an error of 2 or more).
struct UpdateError {
  double error = 0;
  std::string worst{};  // "blocks.0.mlp.up.weight, second moment, rank 1"
  bool same_scale = true;  // all ranks have scaled their gradients by the same
};

// Keeps a copy of what this rank owns of the optimizer's state, 12 bytes an element: the state before a step is what was read
// after the one before, so that nothing can change in between unseen.
class UpdateCheck {
 public:
  // `executor` and `groups` outlive this. Decay, betas and eps are those of the configuration.
  UpdateCheck(engine::Executor& executor, engine::Groups& groups, const config::OptimizerSection& optimizer);

  // After step number `step` (from 1): the worst of all ranks, on all ranks. Collective over the world.
  UpdateError judge(const engine::StepResult& result, double lr, int64_t step);

 private:
  struct Part {
    at::Tensor value, exp_avg, exp_avg_sq;  // of a unit, fp32 on the host
  };
  std::vector<Part> read();
  struct Worst {
    double error = 0, row = 0, slot = 0;
  };
  void judge_unit(size_t unit, const Part& found, const AdamWFormula& formula, Worst& worst);
  void judge_copy(size_t unit, const Part& found, Worst& worst);

  engine::Executor& executor_;
  engine::Groups& groups_;
  config::OptimizerSection optimizer_;
  std::vector<Part> before_;
};

}  // namespace lockstep::train

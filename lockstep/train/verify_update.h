// An update held against the formula of its optimizer (optim::update_formula), element by element in fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/engine/executor.h"

namespace lockstep::train {

// The error = largest |found - formula| / rounding, over value, slots and the compute copy, which must be the rounded
// value to the bit (a copy that is not has an error of 2 or more).
struct UpdateError {
  double error = 0;
  std::string worst{};  // "blocks.0.mlp.up.weight, value, rank 1"
  bool same_scale = true;  // all ranks have scaled their gradients by the same
};

// Keeps a copy of what this rank owns of values and slots, on the host: the state before a step is what was read
// after the one before, so that nothing can change in between unseen.
class UpdateCheck {
 public:
  // `executor` and `groups` outlive this. `optimizer`: of the configuration, whatever the executor was given.
  UpdateCheck(engine::Executor& executor, engine::Groups& groups, const config::OptimizerSection& optimizer);

  // After step number `step` (from 1): the worst of all ranks, on all ranks. Collective over the world.
  UpdateError judge(const engine::StepResult& result, double lr, int64_t step);

 private:
  using Part = std::vector<at::Tensor>;  // of a unit, fp32 on the host: value, then the slots
  std::vector<Part> read();
  struct Worst {
    double error = 0, row = 0, state = 0;
  };
  void judge_unit(size_t unit, const Part& found, const optim::StepPoint& point, Worst& worst);
  void judge_copy(size_t unit, const Part& found, Worst& worst);

  engine::Executor& executor_;
  engine::Groups& groups_;
  config::OptimizerSection optimizer_;
  std::vector<Part> before_;
};

}  // namespace lockstep::train

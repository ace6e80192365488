// An update held against the formula of its optimizer: element by element in fp64 (optim::update_formula), or of whole matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/engine/executor.h"

namespace lockstep::train {

// The error = largest |found - formula| / rounding, over value, slots and the compute copy, which must be the rounded
// value to the bit (a copy that is not has an error of 2 or more). Of a whole matrix momentum goes element by element; of its value
// error = |found - formula| / bound by Frobenius norms, with the iteration made anew from the layout's own momentum and gradient, in
// its type. The bound is a share of the update: 2^-8 with bf16, 2^-14 with fp32.
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
  using Part = std::vector<at::Tensor>;  // of a unit, fp32 on the host: value, then slots_
  std::vector<Part> read();
  // [row of the table]: of whole matrices the values. Collective over the ranks that share them.
  std::vector<at::Tensor> read_matrices();
  struct Worst {
    double error = 0, row = 0, state = 0;
  };
  void judge_unit(size_t unit, const Part& found, const optim::StepPoint& point, Worst& worst);
  void judge_matrices(const engine::StepResult& result, const optim::StepPoint& point, Worst& worst);
  void judge_copy(size_t unit, const Part& found, Worst& worst);

  engine::Executor& executor_;
  engine::Groups& groups_;
  config::OptimizerSection optimizer_;
  std::vector<arch::StateSlot> slots_;  // of all optimizers of the model
  std::vector<Part> before_;
  std::vector<at::Tensor> matrices_before_;
};

}  // namespace lockstep::train

// One update of parameters by an optimizer of arch/optimizer.h.
#pragma once

#include <vector>

#include "lockstep/arch/optimizer.h"
#include "lockstep/config/run_config.h"
#include "lockstep/optim/parameter.h"

namespace lockstep::optim {

// Updates values, slots and copies. Of a whole-matrix optimizer every parameter is a whole matrix, else any piece of one. Of
// `options` each optimizer reads its own; the rate is that of `point`.
void step(const arch::OptimizerSpec& optimizer, const std::vector<Parameter>& parameters, const config::OptimizerSection& options,
          const StepPoint& point);

// The same of parameters with their own rules, in whatever order they stand.
void step(const std::vector<Parameter>& parameters, const config::OptimizerSection& options, const StepPoint& point);

// What a rule makes of the section and of the point of its step.
config::OptimizerSection options_of(const arch::UpdateRule& rule, const config::OptimizerSection& options);
StepPoint point_of(const arch::UpdateRule& rule, const StepPoint& point);

// The step of a whole-matrix optimizer in three, for matrices of which each rank has a piece. direction: the slots take the
// gradient of a piece; what is to be orthogonalised, in fp32, which may be a slot. orthogonal: of the whole matrix [rows, columns].
// apply: the same of a piece changes its value and copy. The three together are step(). InternalError for another optimizer.
struct MatrixShape {
  int64_t rows = 0;
  int64_t columns = 0;
};
at::Tensor direction(const Parameter& piece, const config::OptimizerSection& options, const StepPoint& point);
at::Tensor orthogonal(const arch::OptimizerSpec& optimizer, const at::Tensor& matrix, const config::OptimizerSection& options);
void apply(const Parameter& piece, const at::Tensor& orthogonal_piece, const MatrixShape& shape,
           const config::OptimizerSection& options, const StepPoint& point);

// The same as a formula, of parameters with that `decay`. Of a whole-matrix optimizer the slots alone go element by element: the
// value stays as it was.
UpdateFormula update_formula(const arch::OptimizerSpec& optimizer, const config::OptimizerSection& options, const StepPoint& point,
                             bool decay);

}  // namespace lockstep::optim

// What ends a step: the norm of the gradients, the learning rate, and updates by the optimizers of arch/optimizer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/arch/optimizer.h"
#include "lockstep/config/run_config.h"

namespace lockstep::optim {

// Views of one parameter (or of a piece of it): fp32 where nothing else is said, same shape.
struct Parameter {
  at::Tensor value;                 // master weight
  at::Tensor grad;                  // read alone
  std::vector<at::Tensor> slots{};  // of the optimizer (arch::OptimizerSpec), in its order and types
  at::Tensor copy{};                // bf16: becomes the rounded value; undefined: there is none
  bool decay = false;
  arch::UpdateRule rule{};  // who updates it
};

struct StepPoint {
  double lr = 0;          // of this step
  int64_t number = 1;     // counts from 1 (bias correction)
  double grad_scale = 1;  // the gradient used is grad * grad_scale
};

// The learning rate. `step` counts from 0: the rate with which update number step + 1 of `steps` is made.
// Warm-up: lr * (step + 1) / warmup_steps. Then with x = (step - warmup) / (steps - 1 - warmup) from 0 to 1:
// cosine: min_lr + (lr - min_lr) (1 + cos(pi x)) / 2; linear: lr + (min_lr - lr) x; constant: lr;
// wsd (warm-up, stable, decay; Hu et al. 2024, Haegele et al. 2024): lr until the last fifth of all steps, then
// min_lr + (lr - min_lr) (1 - sqrt(y)) with y from 0 to 1 over that fifth.
double learning_rate(const config::OptimizerSection& optimizer, int64_t step, int64_t steps);

// The L2 norm over all gradients together; each contiguous fp32. Squares are summed in fp64 as program/summation.h says.
// On the CPU a gradient is cut into pieces by the number of elements alone: the same bits with any number of threads.
double gradient_norm(const std::vector<at::Tensor>& gradients);

// The factor that brings `norm` down to `max_norm`: 1 where it is below or max_norm is 0 (clipping off).
inline double clip_factor(double norm, double max_norm) { return max_norm > 0 && norm > max_norm ? max_norm / norm : 1.0; }

// Updates values, slots and copies, each parameter by its rule, in whatever order they stand. Of a whole-matrix optimizer every
// parameter is a whole matrix, else any piece of one. Of `options` each optimizer reads its own; the rate is that of `point`.
void step(const std::vector<Parameter>& parameters, const config::OptimizerSection& options, const StepPoint& point);

// The step of a whole-matrix optimizer in three, for matrices of which each rank has a piece. direction: the slots take the
// gradient of a piece; what is to be orthogonalised, in fp32, which may be a slot. orthogonal: of the whole matrix [rows, columns].
// apply: the same of a piece changes its value and copy; `shape` is that of the whole matrix. The three together are step().
// InternalError for another optimizer.
at::Tensor direction(const Parameter& piece, const config::OptimizerSection& options, const StepPoint& point);
at::Tensor orthogonal(const arch::OptimizerSpec& optimizer, const at::Tensor& matrix, const config::OptimizerSection& options);
void apply(const Parameter& piece, const at::Tensor& orthogonal_piece, at::IntArrayRef shape, const config::OptimizerSection& options,
           const StepPoint& point);

// An update in fp64, of one element: from `before` (the value, then the slots) and the gradient as it is stored, the state after
// it and what fp32 arithmetic may be off by in each.
using UpdateFormula =
    std::function<void(std::span<const double> before, double gradient, std::span<double> after, std::span<double> rounding)>;
inline constexpr double kUlp = 0x1p-24;          // of fp32, rounded to the nearest
inline constexpr double kLeastNormal = 0x1p-126;  // below it a processor may flush to zero
// Of parameters with that `decay`. Of a whole-matrix optimizer the slots alone go element by element: the value stays as it was.
UpdateFormula update_formula(const arch::UpdateRule& rule, const config::OptimizerSection& options, const StepPoint& point, bool decay);

}  // namespace lockstep::optim

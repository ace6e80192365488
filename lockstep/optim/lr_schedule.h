// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>

#include "lockstep/config/run_config.h"

namespace lockstep::optim {

// `step` counts from 0: the rate with which update number step + 1 of `steps` is made.
// Warm-up: lr * (step + 1) / warmup_steps. Then with x = (step - warmup) / (steps - 1 - warmup) from 0 to 1:
// cosine: min_lr + (lr - min_lr) (1 + cos(pi x)) / 2; linear: lr + (min_lr - lr) x; constant: lr;
// wsd (warm-up, stable, decay; Hu et al. 2024, Haegele et al. 2024): lr until the last fifth of all steps, then
// min_lr + (lr - min_lr) (1 - sqrt(y)) with y from 0 to 1 over that fifth.
double learning_rate(const config::OptimizerSection& optimizer, int64_t step, int64_t steps);

}  // namespace lockstep::optim

// AdamW on the CPU in one pass over memory: the step costs what reading and writing the state costs.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/optim/adamw.h"

namespace lockstep::optim {

// As adamw_step.
void adamw_step_cpu(const std::vector<AdamWParameter>& parameters, const AdamWOptions& options, double lr, int64_t step,
                    double grad_scale);

// The sum of the squares of a contiguous fp32 tensor. Cut into pieces by the number of elements alone: the same bits with
// any number of threads.
double sum_of_squares_cpu(const at::Tensor& values);

}  // namespace lockstep::optim

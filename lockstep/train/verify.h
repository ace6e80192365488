// The project's own oracle: trains a few steps under a layout and under one rank from the same seed and data, and compares
// loss, gradient norm, every gradient and every parameter after the update.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/config/run_config.h"
#include "lockstep/program/layout.h"

namespace lockstep::train {

// Error of a gradient = largest absolute difference / largest absolute value of the reference, per tensor; parameters that
// form one matrix (q, k and v) are one tensor, as the gradient of a key bias alone is zero but for rounding.
// Error of a parameter = largest absolute difference / learning rate, over the elements whose reference gradient is at least
// `noise_floor` of the tensor's largest: below it Adam turns rounding noise into a full step of either sign, so there the
// bound is two learning rates.
// Every step starts from the twin's parameters and moments: those differences, harmless in themselves, would otherwise
// be what the next step's gradients differ by.
struct Tolerances {
  double loss = 1e-5;       // relative
  double grad_norm = 1e-5;  // relative
  double gradient = 1e-5;
  double parameter = 0.05;  // learning rates
  double noise_floor = 1e-3;
};
Tolerances tolerances_of(const program::Layout& layout);

struct VerifyStep {
  double loss = 0, reference_loss = 0;
  double grad_norm = 0, reference_grad_norm = 0;
  double max_gradient_error = 0;
  std::string worst_gradient{};
  double max_parameter_error = 0;
  std::string worst_parameter{};
  std::vector<std::string> failures{};  // one line per bound that does not hold
};

struct VerifyReport {
  bool ok = true;
  int world_size = 1;
  std::string layout{};
  Tolerances tolerances{};
  std::vector<VerifyStep> steps{};
};

// Collective over the world; rank 0 also runs the one-rank twin. The report is complete on rank 0; `ok` is everyone's.
// Replicas whose parameters differ in a bit are a failure too.
VerifyReport verify(const config::RunConfig& config, const program::Layout& layout, comm::World& world, int64_t steps);

// For people, and as one JSON object.
std::string verify_text(const VerifyReport& report);
std::string verify_json(const VerifyReport& report);

}  // namespace lockstep::train

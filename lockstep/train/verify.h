// The project's own oracle: trains a few steps under a layout and under one rank from the same seed and data. Three judgements
// a step: gradients against the twin; the update against the optimizer's formula in fp64; and how far layout and twin drift apart
// where both are left alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/config/run_config.h"
#include "lockstep/engine/executor.h"
#include "lockstep/program/layout.h"

namespace lockstep::train {

// Error of a gradient = largest absolute difference / largest absolute value of the reference, per tensor; where the true
// gradient is zero (gradient_vanishes of verify_compare.h) that of the matrix it is a part of.
// Error of a parameter against the twin = largest difference beyond rounding / learning rate, over the elements whose
// reference gradient is at least `noise_floor` of the tensor's largest: below it Adam turns rounding noise into a full step
// of either sign, so there the bound is two learning rates. With a learning rate of 0: the difference, and none is allowed.
// Error of an update = largest distance from the formula / what rounding explains of it (verify_update.h).
struct Tolerances {
  double loss = 1e-5;       // relative
  double grad_norm = 1e-5;  // relative
  double gradient = 1e-5;
  double parameter = 0.05;  // learning rates
  double noise_floor = 1e-3;
  double update = 1;
};
Tolerances tolerances_of(const program::Layout& layout);

// Of two states: sum |a - b| / sum |b| of parameters and of each slot of the optimizers.
struct Distance {
  double values = 0;
  std::vector<double> slots{};
};

// Where layout and twin are left alone: how far each is from the twin. The layout may be no further than the other one.
struct Drift {
  Distance layout{};
  Distance reordered{};  // a second twin, whose gradients are off by what the first judgement allows (verify_drift.h)
};

struct VerifyStep {
  double loss = 0, reference_loss = 0;
  double grad_norm = 0, reference_grad_norm = 0;
  double learning_rate = 0;
  double max_gradient_error = 0;
  std::string worst_gradient{};
  double max_parameter_error = 0;
  std::string worst_parameter{};
  double max_update_error = 0;
  std::string worst_update{};  // "blocks.0.mlp.up.weight, value, rank 1"
  // Layout and twin did not begin the step from the same state: what is above of the two is shown, and the drift is judged.
  bool alone = false;
  std::optional<Drift> drift{};         // of the steps in which both are left alone, the first of them included
  std::vector<std::string> failures{};  // one line per bound that does not hold
};

// Calls of one kind whose sizes the tokens decide, of all blocks and microbatches of a step. Bytes are what a rank put on the links.
struct TrafficSite {
  std::string site{};  // "blocks.*.experts.dispatch forward"
  std::string axis{};
  int64_t predicted_calls = 0, calls = 0;  // of rank 0; beyond moe.imbalance_limit there are more
  int64_t predicted_bytes = 0;             // of rank 0, with balanced routing
  int64_t bytes = 0;                       // of rank 0, recorded
  int64_t most_bytes = 0;                  // recorded, of the rank with most
  int most_rank = 0;
};
struct VerifyTraffic {
  // In every step, on every rank: all other calls and their bytes are the predicted ones, of these their number, and no call has more
  // bytes than it may have.
  bool as_predicted = true;
  std::vector<TrafficSite> at_run_time{};  // of the last step that was not left out
};

struct VerifyReport {
  bool ok = true;
  int world_size = 1;
  std::string layout{};
  std::vector<arch::StateSlot> slots{};  // of all optimizers, in the order of Distance
  Tolerances tolerances{};
  int64_t free = 0;  // steps at the end in which layout and twin are left alone
  std::vector<VerifyStep> steps{};
  VerifyTraffic traffic{};
};

struct VerifyOptions {
  int64_t steps = 3;
  int64_t free = 2;  // of them, the last ones
  // A seam for tests, which break the layout's side with it.
  std::function<void(engine::ExecutorOptions&)> change_layout{};
};

// Collective over the world; rank 0 also runs the one-rank twin. The report is complete on rank 0; `ok` is everyone's.
// The layout is never touched: it is the twin that takes over the layout's parameters and slots before a step, and from the
// first of the free steps on neither takes over anything. Replicas whose state differs in a bit are a failure too, and so is a step
// that sends other than its program predicts.
VerifyReport verify(const config::RunConfig& config, const program::Layout& layout, comm::World& world,
                    const VerifyOptions& options);

// For people, and as one JSON object.
std::string verify_text(const VerifyReport& report);
std::string verify_json(const VerifyReport& report);

}  // namespace lockstep::train

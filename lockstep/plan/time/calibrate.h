// Constants of a machine from times that were measured on it. A model says how long each observed piece of work takes on a machine; the fit
// changes the constants until it says what was measured: nonlinear least squares of the logarithms (Levenberg 1944, Marquardt 1963), with the
// weights of Huber (1964) against outliers. A constant on which no observation depends stays as it was; of those that the observations do not
// tell apart, each moves as easily as MachineConstant::spread says (Tikhonov's regularisation).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/plan/cluster/cluster.h"
#include "lockstep/plan/time/stack.h"

namespace lockstep::plan {

struct Machine {
  Cluster cluster{};
  Stack stack{};
};

// A positive number that a fit may change.
struct MachineConstant {
  std::string name{};  // as in stack_constants(), or "link", "link_latency" of the device
  double (*get)(const Machine&) = nullptr;
  void (*set)(Machine&, double) = nullptr;
  bool of_stack = true;  // else of the cluster
  // How far it may lie from where it begins, before anything is observed: the standard deviation of the logarithm of its change.
  double spread = 2;
  std::string like{};  // its change is expected to be that of this constant: attention is as much slower as products are
  double most = 0;     // it is a share and no larger; 0: it has no bound
};
// product_cap, product_depth, attention_forward, attention_backward, memory_share, pointwise_factor, launch, tensor_exposed, context_exposed, expert_exposed; link,
// link_latency.
const std::vector<MachineConstant>& machine_constants();

// A piece of work that took so long.
struct Observation {
  std::string what{};  // "F blocks", "all_gather tp": rows of the report
  double seconds = 0;  // measured, above 0
  double times = 1;    // of a step: the root of its share of the step is its weight
};

// Seconds of every observation, in their order. Above 0 for each that says something of the machine, else 0: it is left out.
using MachineModel = std::function<std::vector<double>(const Machine&)>;

struct FittedConstant {
  std::string name{};
  double before = 0, after = 0;
  double error = 0;  // one standard error, as a share; infinity where the observations hardly say more of it than was known before
};

// By `what`: measured against said after the fit, seconds of a step.
struct FittedGroup {
  std::string what{};
  double measured = 0, said = 0;
};

struct Calibration {
  Machine machine{};
  std::vector<FittedConstant> constants{};
  std::vector<FittedGroup> groups{};  // most seconds first
  int observations = 0;               // that took part
  double median_error = 0;            // of |said / measured - 1|, each observation by its share of the step
  double total_error = 0;             // said / measured - 1 of all seconds together
};

struct CalibrateOptions {
  std::vector<std::string> constants{};  // that may change; empty: all of machine_constants(). One that is 0 stays 0
  std::string origin{};                  // of those that change: "runs/x, steps 10 and 11"
  double noise = 0.03;  // by which observations scatter, as a share
};

// ConfigError LS1152 where no observation can be used. InternalError for a name that is none, or where the model gives another number
// of times.
Calibration calibrate(const Machine& start, const std::vector<Observation>& observed, const MachineModel& model, const CalibrateOptions& options = {});

// Tables of constants and groups.
std::string calibration_text(const Calibration& calibration);

}  // namespace lockstep::plan

// Calibration from a traced run: what its actions took (RUN/trace, step_trace.h) beside what the times of plan/time say they take on a machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/plan/simulate.h"
#include "lockstep/plan/step_trace.h"
#include "lockstep/plan/this_machine.h"
#include "lockstep/plan/time/calibrate.h"
#include "lockstep/program/program.h"

namespace lockstep::plan {

// Steps of one layout, measured.
struct TracedRun {
  program::Layout layout{};
  program::Program program{};
  MachineRanks ranks{};     // as the run was started
  std::vector<int64_t> steps{};
  ActionTimes work{};       // of computing without waits for calls inside its layer, medians, scaled to add up to what a rank computes in its median step; of
                            // communication medians, from when all ranks have come and what its group did before is done
  ActionTimes waits{};      // for those calls: medians
  double step_seconds = 0;  // median
};

// Of traces that one layout wrote. The first of several steps warms up: it is left out where there are two or more. `takes_cores`: what travels
// beside computing is copied and summed by the cores that compute, as on CPUs: for that time each of the two has half of them.
TracedRun traced_run(const program::Layout& layout, const program::Program& program, const std::vector<std::vector<StepTrace>>& steps,
                     bool takes_cores = false);
// RUN/config.resolved.toml and RUN/trace. ConfigError LS1154 where the run has no traced step; DataError as read_step().
TracedRun read_traced_run(const std::filesystem::path& run);

// Of every different action of one rank of each pipeline coordinate: its work, and its waits inside layers.
std::vector<Observation> observations(const TracedRun& run);
// What action_seconds.h says of the same, in the same order, on a machine of as many devices as the run has ranks, or more (else ConfigError
// LS1143). Refers to `run`.
MachineModel machine_model(const TracedRun& run);

struct NamedRun {
  std::string name{};  // "runs/x"
  TracedRun run{};
};
// `start` with the constants that the runs determine; their origin names them. On CPUs straggle is what their steps take beyond what their actions
// do. Of a host the runs may have other ranks each. What takes a step of
// one run longer counts for more within it, and each run for as much as each other. LS1143 where no host has fewer devices than a run ranks.
struct HostCalibration {
  Calibration calibration{};  // its machine is that of `machine`
  HostMachine machine{};
};
HostCalibration calibrate_runs(const std::vector<NamedRun>& runs, const HostMachine& start);

}  // namespace lockstep::plan

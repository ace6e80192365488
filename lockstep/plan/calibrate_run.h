// Calibration from a traced run: what its actions took (RUN/trace, step_trace.h) beside what the times of plan/time say they take on a machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lockstep/plan/simulate.h"
#include "lockstep/plan/step_trace.h"
#include "lockstep/plan/this_machine.h"
#include "lockstep/plan/time/calibrate.h"
#include "lockstep/program/program.h"

namespace lockstep::plan {

// Steps of one layout, measured. Times are medians over microbatches and steps.
struct TracedRun {
  program::Layout layout{};
  program::Program program{};
  MachineRanks ranks{};     // as the run was started
  std::vector<int64_t> steps{};
  ActionTimes work{};       // of actions: computing without waits for calls inside its layer; communication from when all ranks have come and what
                            // its group did before is done
  ActionTimes waits{};      // for those calls
  double step_seconds = 0;  // median
};

// Of traces that one layout wrote. The first of several steps warms up: it is left out where there are two or more.
TracedRun traced_run(const program::Layout& layout, const program::Program& program, const std::vector<std::vector<StepTrace>>& steps);
// RUN/config.resolved.toml and RUN/trace. ConfigError LS1154 where the run has no traced step; DataError as read_step().
TracedRun read_traced_run(const std::filesystem::path& run);

// Of every different action of one rank of each pipeline coordinate: its work, and its waits inside layers.
std::vector<Observation> observations(const TracedRun& run);
// What action_seconds.h says of the same, in the same order. Refers to `run`. ConfigError LS1143 on a machine with fewer devices than ranks.
MachineModel machine_model(const TracedRun& run);

// `start` with the constants that the run determines; their origin names it.
Calibration calibrate_run(const TracedRun& run, const Machine& start, const std::string& name);
Calibration calibrate_run(const std::filesystem::path& run, const Machine& start);

}  // namespace lockstep::plan

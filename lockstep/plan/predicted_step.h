// What a machine file says of a step of a layout: of one that is about to be trained there (train --machine).
#pragma once

#include <filesystem>

#include "lockstep/config/run_config.h"
#include "lockstep/plan/this_machine.h"
#include "lockstep/plan/time/step_estimate.h"
#include "lockstep/program/layout.h"

namespace lockstep::plan {

// A host has as many ranks as the layout, with `threads` each (0: the cores shared out). Without memory and traffic. ConfigError LS1143 where the
// machine has fewer devices, LS1150 where it has others than those the run trains on.
StepEstimate predicted_step(const HostMachine& machine, const program::Layout& layout, config::Device device, int threads);
// Of a file that `plan --machine` wrote; further errors of read_file and parse_machine_toml.
StepEstimate predicted_step(const std::filesystem::path& machine, const program::Layout& layout, config::Device device, int threads);

}  // namespace lockstep::plan

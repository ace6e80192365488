// Where the cluster and the constants of `lockstep plan` come from: words, files, this machine, a traced run.
#pragma once

#include <optional>
#include <string>

#include "apps/lockstep/command_line.h"
#include "lockstep/plan/this_machine.h"

namespace lockstep::apps {

struct AskedMachine {
  plan::Machine machine{};
  std::optional<plan::HostShare> host{};  // of CPU ranks of one host
  std::optional<plan::Calibration> calibration{};  // of --calibrate
};

// `cluster` as --cluster says it: words, a preset, a file (which may have the tables [stack] and [host], too), or `here`, this machine, measured now.
// A host has as many ranks as are asked about. The constants are the file's, else what is usual for the device; --stack changes them, --calibrate
// fits them to runs. Errors of parse_cluster, parse_machine_toml, parse_stack_toml, read_traced_run and calibrate_runs.
AskedMachine machine_asked(const CommandLine& command_line, const std::string& cluster, const config::RunConfig& config);

}  // namespace lockstep::apps

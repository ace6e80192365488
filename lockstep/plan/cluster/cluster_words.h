// The text form of a cluster, as parse_cluster has it, and what it shares with the form in TOML.
#pragma once

#include <string_view>

#include "lockstep/plan/cluster/cluster.h"

namespace lockstep::plan {

// Everything but a file. ConfigError LS1141, or LS1140 for the device.
Cluster parse_cluster_words(std::string_view text);

}  // namespace lockstep::plan

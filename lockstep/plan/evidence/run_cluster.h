// The machine of a published run, as far as its row and its source say it.
#pragma once

#include <string_view>

#include "lockstep/plan/cluster/cluster.h"
#include "lockstep/plan/evidence/published_run.h"

namespace lockstep::plan {

// As many nodes as the run has devices: devices and bandwidth of a NIC as the source says it, all else as is usual for the device. ConfigError
// LS1140 for a device that nobody knows here, LS1146 where the row does not say how many there are.
Cluster cluster_of(const PublishedRun& run, const RunSource& source);

// Bytes/s of a NIC in one direction that words say for a device: "8x HDR 200 Gb/s per node (25 GB/s/GPU)", "400 Gb/s (H100, B200) / 800 Gb/s (B300)
// per GPU". What is said of other devices does not count. 0: they do not say it.
double nic_in_words(std::string_view words, std::string_view device);

}  // namespace lockstep::plan

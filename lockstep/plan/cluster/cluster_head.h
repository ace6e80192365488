// What a cluster in words begins with: nodes and devices, or the name of a preset.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/cluster/cluster.h"

namespace lockstep::plan {

// The error of words: LS1141.
[[noreturn]] void refuse_words(const std::string& what, const std::string& way_out);

struct ClusterHead {
  Cluster cluster{};
  std::vector<std::string> rest{};  // words behind it
};
// "8xh100", "8 x H100 SXM5 80GB", "512 h100", "h100 x 8", "64x8xh100", "64 nodes of 8xh200", "2 racks of gb200", "16 nodes of PRESET", a preset.
// ConfigError LS1141, LS1140 for the device.
ClusterHead read_cluster_head(const std::vector<std::string>& words);

}  // namespace lockstep::plan

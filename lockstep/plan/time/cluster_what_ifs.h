// The same step on another cluster: something is slow, the network is another one, a part is 10 % faster or slower.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/plan/cluster/cluster.h"

namespace lockstep::plan {

struct ClusterWhatIf {
  std::string name{};  // "node 0 at 80 %"
  Cluster cluster{};   // changed
};
// Those that mean something for the cluster: a slow node (0.8 of its speed), slow NICs of a node (0.5), twice the NICs, other oversubscriptions,
// rails or none, and 10 % more and less of each bandwidth, of products and of the latency between nodes. What is slow already stays so.
std::vector<ClusterWhatIf> usual_what_ifs(const Cluster& cluster);

struct WhatIfSeconds {
  std::string name{};
  double seconds = 0;  // of a step
};
// In the order of usual_what_ifs.
std::vector<WhatIfSeconds> try_what_ifs(const Cluster& cluster, const std::function<double(const Cluster&)>& step_seconds);
// A row for each, with the change beside `now`; with a price the money of a step.
std::string what_if_table(const Cluster& cluster, double now, const std::vector<WhatIfSeconds>& what_ifs);

}  // namespace lockstep::plan

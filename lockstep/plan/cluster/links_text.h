// What a step puts on the links, as tables and as sentences: which axis loads which links, how busy they are, and what follows for the network.
// Every sentence is made from counted bytes; of an axis nothing is known here but its name.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/cluster/links.h"

namespace lockstep::plan {

// Two tables: classes of links with the busiest of each, its bytes, and the share of the step in which it is busy; axes with what they send
// over which links. Bytes in powers of ten, as networks count them. `step_seconds`: of the step, above 0.
std::string traffic_table(const Traffic& traffic, const Cluster& cluster, double step_seconds);

// Sentences in the order: axes, links, what the same bytes would cost elsewhere, what the links between leaves are for, synchronisation. Without
// traffic a sentence that says so.
std::vector<std::string> explain_traffic(const Traffic& traffic, const Cluster& cluster, double step_seconds);

}  // namespace lockstep::plan

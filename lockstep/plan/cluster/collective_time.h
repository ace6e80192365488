// How long a collective takes on a cluster, as NCCL chooses algorithm and protocol (NCCL, src/graph/tuning.cc), with the bandwidth that its
// group gets: inside a domain that of the links, between nodes that of the node's NICs shared with the groups that leave it at once.
#pragma once

#include "lockstep/plan/cluster/placement.h"
#include "lockstep/program/ledger.h"

namespace lockstep::plan {

struct CollectiveTime {
  double latency = 0;   // seconds
  double transfer = 0;  // seconds in which bytes move
  const char* algorithm = "";  // "ring", "tree", "nvls", "direct"
  double seconds() const { return latency + transfer; }
};

// `bytes` of the full (gathered) buffer, as program::payload(): all_reduce's tensor, all_gather's output, reduce_scatter's input, what an
// all_to_all holds on a rank, what send moves. A group of one takes none.
CollectiveTime collective_time(const Cluster& cluster, const GroupShape& group, program::Collective collective, double bytes);

// Bytes/s that a rank of the group gets for what leaves it, before latency: the narrowest of domain link, NICs and leaf up-links on the way.
double group_bandwidth(const Cluster& cluster, const GroupShape& group);

}  // namespace lockstep::plan

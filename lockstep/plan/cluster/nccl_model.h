// NCCL's own model of its algorithms (src/graph/tuning.cc: ncclTopoInitTunerConstants, ncclTopoTuneModel, ncclTopoGetAlgoTime, at 5067397c), by which it
// chooses among them: a latency for each step, and a share of the bandwidth for each protocol.
#pragma once

#include <array>

#include "lockstep/plan/cluster/collective_time.h"
#include "lockstep/plan/cluster/group_rates.h"

namespace lockstep::plan {

enum class Protocol { kLl, kLl128, kSimple };
inline constexpr std::array<Protocol, 3> kProtocols = {Protocol::kLl, Protocol::kLl128, Protocol::kSimple};

// Of one group on one cluster. Seconds, bytes/s.
class NcclModel {
 public:
  NcclModel(const Cluster& cluster, const GroupShape& group);

  // A buffer of `bytes` once or twice around the ring; all_reduce goes twice.
  CollectiveTime ring(double bytes, int passes) const;
  // From one rank to the next through all, in chunks: broadcast, and reduce backwards.
  CollectiveTime chain(double bytes) const;
  CollectiveTime tree(double bytes) const;  // all_reduce
  // Sums and copies made by the switches of a domain (NVLink SHARP); between domains by a tree.
  bool has_nvls() const;
  CollectiveTime nvls_all_reduce(double bytes) const;
  CollectiveTime nvls_gather(double bytes) const;  // all_gather, reduce_scatter; of one domain
  // Each rank with each other.
  CollectiveTime all_to_all(double bytes) const;
  // One rank sends to all others, or they to it, `bytes` in all.
  CollectiveTime rooted(double bytes) const;
  // One message from a rank to its neighbour.
  CollectiveTime step(double bytes) const;

 private:
  CollectiveTime fastest(const std::array<CollectiveTime, 3>& of_protocols) const;
  bool usable(Protocol protocol) const;
  double inside_step(Protocol protocol, bool tree) const;
  double network_step(Protocol protocol, bool tree, double across_leaves) const;
  double ring_rate(Protocol protocol, double rate) const;
  double tree_rate(Protocol protocol, double rate) const;

  const Cluster& cluster_;
  const GroupShape& group_;
  const GroupRates rates_;
  const double rate_;   // of a ring
  const double start_;  // what a call takes beyond the model
};

}  // namespace lockstep::plan

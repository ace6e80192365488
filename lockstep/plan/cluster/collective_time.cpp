#include "lockstep/plan/cluster/collective_time.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/plan/cluster/nccl_model.h"

namespace lockstep::plan {
namespace {

using program::Collective;

constexpr double kBarrierBytes = 8;       // as program::payload()
constexpr double kHostStep = 5e-6;        // seconds until a rank on another core sees what was written for it, where nobody measured it

CollectiveTime faster(const CollectiveTime& a, const CollectiveTime& b) { return b.seconds() < a.seconds() ? b : a; }

CollectiveTime all_reduce(const NcclModel& model, double bytes) {
  const CollectiveTime best = faster(model.ring(bytes, 2), model.tree(bytes));
  return model.has_nvls() ? faster(best, model.nvls_all_reduce(bytes)) : best;
}

CollectiveTime gather(const NcclModel& model, const GroupShape& group, double bytes) {
  const CollectiveTime best = model.ring(bytes, 1);
  return model.has_nvls() && group.domains == 1 ? faster(best, model.nvls_gather(bytes)) : best;
}

// Of ranks on CPUs: this library's own algorithms, each rank with each other at once (program/ledger.h, direct).
CollectiveTime on_hosts(const Cluster& cluster, const GroupShape& group, Collective collective, double bytes) {
  const GroupRates rates = rates_of(cluster, group);
  const Network& network = cluster.network;
  const double step = cluster.device.link_latency > 0 ? cluster.device.link_latency : kHostStep;
  const double wire = rates.units == 1 ? 0 : group.leaves > 1 ? network.latency_spine : network.latency_leaf;
  const double n = group.ranks, rounds = collective == Collective::kAllReduce ? 2 : 1;
  const bool neighbour = collective == Collective::kSend || collective == Collective::kRecv || collective == Collective::kShift ||
                         collective == Collective::kShiftBack || collective == Collective::kBroadcast || collective == Collective::kReduce;
  const double near = neighbour ? (rates.units == 1 || rates.in_unit > 1 ? 1 : 0) : rounds * (rates.in_unit - 1) / n;
  const double far = rates.units == 1 ? 0 : neighbour ? 1 : rounds * (n - rates.in_unit) / n * rates.in_unit;
  const double transfer = std::max(near > 0 ? bytes * near / rates.inside : 0, far > 0 ? bytes * far / (neighbour ? rates.one_rank : rates.network) : 0);
  return {.latency = rounds * (step + wire), .transfer = transfer, .algorithm = "direct"};
}

CollectiveTime on_devices(const NcclModel& model, const GroupShape& group, Collective collective, double bytes) {
  switch (collective) {
    case Collective::kAllReduce:
      return all_reduce(model, bytes);
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return gather(model, group, bytes);
    case Collective::kBroadcast:
    case Collective::kReduce:
      return model.chain(bytes);
    case Collective::kAllToAll:
      return model.all_to_all(bytes);
    case Collective::kGather:
    case Collective::kScatter:
      return model.rooted(bytes);
    case Collective::kSend:
    case Collective::kRecv:
    case Collective::kShift:
    case Collective::kShiftBack:
      return model.step(bytes);
    case Collective::kBarrier:
      return all_reduce(model, kBarrierBytes);
  }
  LOCKSTEP_CHECK(false, "collective ", static_cast<int>(collective));
  return {};
}

}  // namespace

CollectiveTime collective_time(const Cluster& cluster, const GroupShape& group, Collective collective, double bytes) {
  LOCKSTEP_CHECK(bytes >= 0, bytes, " bytes");
  if (group.ranks == 1 || (bytes == 0 && collective != Collective::kBarrier)) return {};
  if (cluster.device.generation != Generation::kCpu) return on_devices(NcclModel(cluster, group), group, collective, bytes);
  const bool barrier = collective == Collective::kBarrier;
  return on_hosts(cluster, group, barrier ? Collective::kAllReduce : collective, barrier ? kBarrierBytes : bytes);
}

}  // namespace lockstep::plan

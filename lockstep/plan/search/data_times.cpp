#include "lockstep/plan/search/data_times.h"

#include <algorithm>

#include "lockstep/plan/cluster/collective_time.h"
#include "lockstep/plan/search/candidate.h"

namespace lockstep::plan {
namespace {

using arch::ParameterGroup;
using program::Collective;

constexpr double kFp32 = 4;
constexpr double kSmall = 1e6, kLarge = 64e6;  // bytes of two messages, between which a line is drawn

class GroupTimes {
 public:
  GroupTimes(const Job& job, GroupShape shape) : job_(job), shape_(shape) {}

  double of(Collective collective, double bytes) const {
    const CollectiveTime time = collective_time(job_.cluster, shape_, collective, bytes);
    return time.latency + time.transfer / job_.stack.network_share;
  }
  // `bytes` of a layer that travel with those of its neighbours, `together` at a time where that is more.
  double in_buckets(Collective collective, double bytes, double together) const {
    const double bucket = std::max(bytes, together);
    return of(collective, bucket) * bytes / bucket;
  }
  double in_calls(Collective collective, double bytes, double calls) const { return calls * of(collective, bytes / calls); }

 private:
  const Job& job_;
  const GroupShape shape_;
};

void add_sends(const Job& job, const program::Layout& layout, const Placement& placement, DataTimes& times) {
  const int next = layout.pipelines();
  const GroupTimes pair(job, shape_of_pair(placement, 0, next));
  const double small = pair.of(Collective::kSend, kSmall), large = pair.of(Collective::kSend, kLarge);
  times.send_per_byte = std::max(0.0, (large - small) / (kLarge - kSmall));
  times.send_latency = std::max(0.0, small - kSmall * times.send_per_byte);
}

struct Groups {
  GroupTimes sum, shard, copies;
  int shards = 1, replicas = 1;
};

void add_group(const Job& job, const Groups& groups, const UnitSize& unit, DataTimes::OfPlace& times) {
  const double gradients = unit.elements * unit.wire_size, parameters = unit.elements * unit.element_size;
  const double bucket = job.config.parallel.bucket_mib * 1024 * 1024 / kFp32 * unit.wire_size;
  times.all_reduce += groups.sum.in_buckets(Collective::kAllReduce, gradients, bucket);
  if (groups.replicas > 1) times.copies += groups.copies.in_buckets(Collective::kAllReduce, gradients / groups.shards, bucket / groups.shards);
  if (groups.shards == 1) return;
  times.reduce_scatter += groups.shard.in_buckets(Collective::kReduceScatter, gradients, bucket);
  times.reduce_unit += groups.shard.in_calls(Collective::kReduceScatter, gradients, job.stack.shard_calls);
  times.gather_unit += groups.shard.in_calls(Collective::kAllGather, parameters, job.stack.shard_calls);
}

}  // namespace

DataTimes data_times(const Job& job, const EstimateOptions& options, LayerPieces& pieces, const Candidate& candidate) {
  Candidate shared = candidate;
  shared.zero = 1;
  const std::vector<UnitSizes>& units = pieces.units(shared);
  const program::Layout& layout = pieces.layout(shared);
  const Placement placement(job.cluster, layout.mesh, options.order);
  DataTimes times;
  times.places.resize(units.size());
  for (const ParameterGroup group : arch::kParameterGroups) {
    const auto index = static_cast<size_t>(group);
    if (std::ranges::all_of(units, [&](const UnitSizes& unit) { return unit[index].elements == 0; })) continue;
    const program::Domain domain = layout.domain(group);
    if (layout.mesh.degree(domain.sum) == 1) continue;
    const auto times_of = [&](const mesh::View& view) { return GroupTimes(job, shape_of(placement, layout.mesh, view, 0)); };
    const Groups groups{.sum = times_of(domain.sum), .shard = times_of(domain.shard), .copies = times_of(domain.copies),
                        .shards = layout.mesh.degree(domain.shard), .replicas = layout.mesh.degree(domain.copies)};
    for (size_t place = 0; place < units.size(); ++place)
      if (units[place][index].elements > 0) add_group(job, groups, units[place][index], times.places[place]);
  }
  if (candidate.pp == 1) return times;
  add_sends(job, layout, placement, times);
  if (!job.model.tied) return times;
  for (const UnitSize& unit : units[0]) {
    const GroupTimes ends(job, shape_of_pair(placement, 0, (candidate.pp - 1) * layout.pipelines()));
    times.tied += ends.of(Collective::kAllReduce, unit.elements * kFp32);
  }
  return times;
}

}  // namespace lockstep::plan

#include "lockstep/plan/search/space.h"

#include <algorithm>
#include <numeric>

#include "lockstep/plan/search/candidate.h"

namespace lockstep::plan {
namespace {

using config::ScheduleKind;

// The fixed value alone.
std::vector<int> only(const std::optional<int>& fixed, std::vector<int> all) {
  return fixed ? std::vector{*fixed} : std::move(all);
}

}  // namespace

std::vector<Candidate> CandidateSpace::meshes(int devices) const {
  std::vector<Candidate> found;
  const std::vector<int> all = divisors(devices);
  const auto axis = [&](const char* name) { return only(fixed_whole(fixed_, name), all); };
  const std::optional<int> dp = fixed_whole(fixed_, "dp");
  const auto is_free = [&](const char* name) { return !fixed_.values.contains(name); };
  const bool whole_rows = fixed_switch(fixed_, "sequence_parallel") == false;
  for (const int tp : axis("tp"))
    for (const int cp : axis("cp"))
      for (const int pp : axis("pp")) {
        const int64_t copy = int64_t{tp} * cp * pp;
        const bool free_axis = (tp > 1 && is_free("tp")) || (cp > 1 && is_free("cp")) || (pp > 1 && is_free("pp"));
        if ((copy > devices || devices % copy != 0) && free_axis) continue;
        found.push_back({.tp = tp, .pp = pp, .cp = cp, .dp = dp.value_or(static_cast<int>(std::max<int64_t>(1, devices / copy))), .sequence_parallel = !whole_rows});
      }
  return found;
}

std::vector<std::pair<int, int>> CandidateSpace::expert_grids(const Candidate& mesh) const {
  const bool experts = model_.has_experts();
  std::vector<std::pair<int, int>> grids;
  for (const int etp : only(fixed_whole(fixed_, "etp"), experts ? divisors(mesh.tp) : std::vector{1}))
    for (const int ep : only(fixed_whole(fixed_, "ep"), experts ? divisors(model_.experts.count) : std::vector{1})) grids.emplace_back(ep, etp);
  return grids;
}

std::vector<int> CandidateSpace::micro_batches(const Candidate& mesh) const {
  const int64_t of_rank = config_.train.global_batch / mesh.dp, length = std::max<int64_t>(1, config_.train.seq_len / mesh.cp);
  std::vector<int> sizes = {1};
  if (of_rank >= 1 && config_.train.global_batch % mesh.dp == 0) sizes = divisors(of_rank);
  const bool both_free = !fixed_.values.contains("cp") && !fixed_.values.contains("dp");
  std::erase_if(sizes, [&](int size) { return size > 1 && (size * length > kMostTokens || (both_free && std::gcd(size, mesh.cp) > 1)); });
  return only(fixed_whole(fixed_, "micro_batch"), sizes);
}

std::vector<CandidateSpace::Order> CandidateSpace::orders(int pp) const {
  const std::optional<ScheduleKind> schedule = fixed_schedule(fixed_);
  const std::optional<int> stages = fixed_whole(fixed_, "virtual_stages");
  const auto of = [&](ScheduleKind kind) {
    std::vector<Order> orders;
    if (stages) return std::vector<Order>{{kind, *stages}};
    if (kind != ScheduleKind::kInterleaved) return std::vector<Order>{{kind, config::v_shaped(kind) ? 2 : 1}};
    for (int each = 2; each <= kMostVirtualStages && int64_t{pp} * each <= model_.layers + 2; ++each) orders.push_back({kind, each});
    return orders;
  };
  if (schedule) return of(*schedule);
  if (pp == 1) return of(ScheduleKind::kOneFOneB);
  std::vector<Order> orders;
  for (const ScheduleKind kind : {ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZbH1, ScheduleKind::kZbH2, ScheduleKind::kZbV, ScheduleKind::kDualPipeV})
    for (const Order& order : of(kind)) orders.push_back(order);
  return orders;
}

std::vector<config::Recompute> CandidateSpace::recomputes() const {
  if (const auto fixed = fixed_recompute(fixed_)) return {*fixed};
  return {config::Recompute::kNone, config::Recompute::kSelective, config::Recompute::kFull};
}

// Groups that fill a domain or a leaf: larger ones save little memory, smaller ones no time.
std::vector<int> CandidateSpace::replicates(const Candidate& mesh) const {
  if (const auto fixed = fixed_whole(fixed_, "dp_replicate")) return {*fixed};
  std::vector<int> found = {1};
  const int64_t inner = int64_t{mesh.tp} * mesh.cp, leaf = int64_t{cluster_.network.nodes_per_leaf} * cluster_.devices_per_node;
  for (const int64_t ranks : {int64_t{cluster_.domain}, leaf}) {
    int most = 1;
    for (const int shard : divisors(mesh.dp))
      if (shard * inner <= ranks) most = shard;
    if (most > 1 && most < mesh.dp && std::ranges::count(found, mesh.dp / most) == 0) found.push_back(mesh.dp / most);
  }
  return found;
}

// Alone there is nobody to share states with, but those of experts where other ranks hold the same ones.
std::vector<CandidateSpace::Sharing> CandidateSpace::sharings(const Candidate& mesh) const {
  const bool shared = mesh.dp * mesh.cp > 1 || (model_.has_experts() && mesh.tp > 1);
  const std::vector<int> replicates = this->replicates(mesh);
  std::vector<Sharing> found;
  for (const int zero : only(fixed_whole(fixed_, "zero"), shared ? std::vector{0, 1, 2, 3} : std::vector{0})) {
    if (zero == 0) found.push_back({.replicate = replicates.front()});
    else
      for (const int replicate : replicates) found.push_back({zero, replicate});
  }
  return found;
}

std::vector<bool> CandidateSpace::offloads() const {
  if (const auto fixed = fixed_switch(fixed_, "offload_optimizer")) return {*fixed};
  return {false, true};
}

int64_t CandidateSpace::inner(const Candidate& mesh) const {
  return std::ssize(orders(mesh.pp)) * std::ssize(recomputes()) * std::ssize(sharings(mesh)) * std::ssize(offloads());
}

}  // namespace lockstep::plan

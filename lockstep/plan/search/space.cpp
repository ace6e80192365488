#include "lockstep/plan/search/space.h"

#include <algorithm>
#include <array>

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
  const bool whole_rows = fixed_switch(fixed_, "sequence_parallel") == false;
  for (const int tp : axis("tp"))
    for (const int cp : axis("cp"))
      for (const int pp : axis("pp")) {
        const int64_t copy = int64_t{tp} * cp * pp;
        if (copy > devices) continue;
        const bool fills = devices % copy == 0;
        if (!fills && !fixed_.values.contains("tp") && !fixed_.values.contains("cp") && !fixed_.values.contains("pp")) continue;
        found.push_back({.tp = tp, .pp = pp, .cp = cp, .dp = dp.value_or(static_cast<int>(devices / copy)), .sequence_parallel = !whole_rows});
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
  std::erase_if(sizes, [&](int size) { return size > 1 && size * length > kMostTokens; });
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

// Alone there is nobody to share states with, but those of experts where other ranks hold the same ones.
std::vector<int> CandidateSpace::zeros(const Candidate& mesh) const {
  const bool shared = mesh.dp * mesh.cp > 1 || (model_.has_experts() && mesh.tp > 1);
  return only(fixed_whole(fixed_, "zero"), shared ? std::vector{0, 1, 2, 3} : std::vector{0});
}

std::vector<bool> CandidateSpace::offloads() const {
  if (const auto fixed = fixed_switch(fixed_, "offload_optimizer")) return {*fixed};
  return {false, true};
}

int64_t CandidateSpace::inner(const Candidate& mesh) const {
  return std::ssize(orders(mesh.pp)) * std::ssize(recomputes()) * std::ssize(zeros(mesh)) * std::ssize(offloads());
}

}  // namespace lockstep::plan

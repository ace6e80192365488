#include "lockstep/program/placement.h"

#include <algorithm>
#include <utility>

#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::program {
namespace {

// The first rank of tp has no fewer rows than the others.
int64_t activation_bytes(const Layout& layout, int rank) {
  if (!layout.offload.activations) return 0;
  int64_t bytes = 0;
  const std::vector<arch::LayerCost> costs = layer_costs(layout, 0);
  for (const int layer : layout.layers_of(rank))
    if (layout.recompute_of(layer) == arch::Recompute::kFull) bytes += costs[static_cast<size_t>(layer)].kept;
  return bytes;
}

std::string bytes(int64_t count) { return format_bytes(static_cast<double>(count)); }

std::string equation(const HostPlan& plan) {
  return cat("gradients ", bytes(plan.gradients), " + states ", bytes(plan.states), " + two buffers of a unit on disk ",
             bytes(plan.staging), " + activations ", bytes(plan.activations), " = ", bytes(plan.host()));
}

// The small units first, as few as the limit takes; where no choice is small enough the one that needs least.
struct Choice {
  HostPlan plan;
  bool fits = true;
};

Choice choose(const Layout& layout, int rank) {
  HostPlan plan;
  if (!layout.offload.optimizer && !layout.offload.activations) return {.plan = plan};
  plan.activations = activation_bytes(layout, rank);
  std::vector<std::pair<int64_t, int>> units;  // bytes of its states, id
  if (layout.offload.optimizer)
    for (const auto& [id, size] : unit_sizes(layout, layout.param_table(rank))) {
      units.emplace_back(size.offloaded, id);
      plan.gradients += size.part * 4;
      plan.states += size.offloaded;
    }
  std::sort(units.begin(), units.end());
  const int64_t limit = layout.offload.host_limit;
  HostPlan least = plan;
  for (size_t next = 0; limit > 0 && plan.host() > limit; ++next) {
    if (!layout.offload.disk || next == units.size()) return {.plan = least, .fits = false};
    const auto& [bytes_of_unit, id] = units[next];
    plan.states -= bytes_of_unit;
    plan.disk += bytes_of_unit;
    plan.staging = 2 * bytes_of_unit;  // ascending: the largest so far
    plan.disk_units.push_back(id);
    if (plan.host() < least.host()) least = plan;
  }
  std::sort(plan.disk_units.begin(), plan.disk_units.end());
  return {.plan = plan};
}

// Of the ranks, alike but for their stages, the one with the largest plan that does not fit; nothing where all do.
std::optional<HostPlan> too_large(const Layout& layout) {
  std::optional<HostPlan> worst;
  for (int rank = 0; rank < layout.mesh.world_size(); rank += layout.pipelines()) {
    const Choice choice = choose(layout, rank);
    if (!choice.fits && (!worst || choice.plan.host() > worst->host())) worst = choice.plan;
  }
  return worst;
}

// With what mends it of the limit and the disk alone.
config::LayoutProblem problem_of(const Layout& layout, const HostPlan& worst) {
  config::LayoutProblem problem{.key = "memory.host_limit",
                                .what = cat("a rank offloads more to the host than memory.host_limit (",
                                            bytes(layout.offload.host_limit), ") allows: ", equation(worst),
                                            layout.offload.disk ? ", the least that any choice of units on disk needs" : "")};
  Layout with_disk = layout;
  with_disk.offload.disk = true;
  if (!layout.offload.disk && !too_large(with_disk))
    problem.ways = {{.changes = {{"memory.disk_path", "spill"}},
                     .text = "set memory.disk_path, which takes optimizer states beyond it"}};
  problem.ways.push_back({.changes = {{"memory.host_limit", cat((worst.host() + kMiB - 1) / kMiB, "MiB")}}});
  return problem;
}

}  // namespace

bool HostPlan::on_disk(int unit) const { return std::binary_search(disk_units.begin(), disk_units.end(), unit); }

std::map<int, UnitSize> unit_sizes(const Layout& layout, const std::vector<arch::ParamSpec>& table) {
  std::map<int, UnitSize> sizes;
  for (const arch::FlatUnit& unit : layout.flat_layout(table).units) {
    const int64_t updated = arch::update_bytes(table, unit);
    const bool copy = layout.offload.parameters && layout.precision_of(unit.group) == config::Precision::kBf16;
    sizes[unit.id] = {.whole = unit.numel(), .part = unit.part(), .updated = updated, .offloaded = updated + (copy ? 2 * unit.part() : 0)};
  }
  return sizes;
}

HostPlan host_plan(const Layout& layout, int rank) {
  Choice choice = choose(layout, rank);
  if (!choice.fits) config::refuse({}, kHostLimitCode, "", {problem_of(layout, too_large(layout).value())});
  return std::move(choice.plan);
}

std::optional<config::LayoutProblem> host_limit_problem(const Layout& layout) {
  const std::optional<HostPlan> worst = too_large(layout);
  if (!worst) return std::nullopt;
  config::LayoutProblem problem = problem_of(layout, *worst);
  for (int stage = layout.zero + 1; stage <= 3; ++stage) problem.ways.push_back({.changes = {{"parallel.zero", cat(stage)}}});
  return problem;
}

}  // namespace lockstep::program

#include "lockstep/program/placement.h"

#include <algorithm>
#include <utility>

#include "lockstep/arch/slot_layout.h"
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
  for (const arch::LayerSpec& spec : arch::layer_table(layout.model)) {
    if (!layout.holds(rank, spec.index) || layout.recompute_of(spec.index) != arch::Recompute::kFull) continue;
    bytes += arch::layer_cost(layout.model, spec,
                              {.batch = layout.micro_batch,
                               .seq_len = layout.seq_len,
                               .element_size = layout.element_size(),
                               .threads = layout.threads,
                               .tensor = layout.tensor_shard(0),
                               .recompute = arch::Recompute::kFull})
                 .kept;
  }
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
  std::vector<std::pair<int64_t, int>> units;  // bytes of its states, layer
  if (layout.offload.optimizer) {
    const std::vector<arch::ParamSpec> table = layout.param_table(rank);
    const arch::FlatLayout flat = arch::flat_layout(table, layout.shards());
    for (const arch::FlatUnit& unit : flat.units) {
      units.emplace_back(offloaded_state_bytes(layout, table, flat, unit), unit.layer);
      plan.gradients += unit.numel() / layout.shards() * 4;
      plan.states += units.back().first;
    }
  }
  std::sort(units.begin(), units.end());
  const int64_t limit = layout.offload.host_limit;
  HostPlan least = plan;
  for (size_t next = 0; limit > 0 && plan.host() > limit; ++next) {
    if (!layout.offload.disk || next == units.size()) return {.plan = least, .fits = false};
    const auto& [bytes_of_unit, layer] = units[next];
    plan.states -= bytes_of_unit;
    plan.disk += bytes_of_unit;
    plan.staging = 2 * bytes_of_unit;  // ascending: the largest so far
    plan.disk_units.push_back(layer);
    if (plan.host() < least.host()) least = plan;
  }
  std::sort(plan.disk_units.begin(), plan.disk_units.end());
  return {.plan = plan};
}

// Of the ranks, alike but for their stages, the one with the largest plan that does not fit; nothing where all do.
std::optional<HostPlan> too_large(const Layout& layout) {
  std::optional<HostPlan> worst;
  const int ranks = layout.mesh.world_size();
  for (int rank = 0; rank < ranks; rank += ranks / layout.pipeline.ranks) {
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

int64_t offloaded_state_bytes(const Layout& layout, const std::vector<arch::ParamSpec>& table, const arch::FlatLayout& flat,
                              const arch::FlatUnit& unit) {
  const bool copy = layout.offload.parameters && layout.precision == config::Precision::kBf16;
  return arch::update_bytes(table, flat, unit) + (copy ? 2 * unit.numel() / layout.shards() : 0);
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

#include "lockstep/program/placement.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

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

[[noreturn]] void refuse(const Layout& layout, const HostPlan& least) {
  const bool could = !layout.offload.disk && layout.offload.optimizer;
  throw ConfigError({.code = "LS4010",
                     .what = cat("a rank offloads more to the host than memory.host_limit (",
                                 bytes(layout.offload.host_limit), ") allows: ", equation(least),
                                 layout.offload.disk ? ", the least that any choice of units on disk needs" : ""),
                     .where = "memory.host_limit",
                     .way_out = could ? "set memory.disk_path, which takes optimizer states beyond it, or raise memory.host_limit"
                                      : "raise memory.host_limit, or share the states among more ranks (parallel.zero)"});
}

}  // namespace

bool HostPlan::on_disk(int unit) const { return std::binary_search(disk_units.begin(), disk_units.end(), unit); }

int64_t offloaded_state_bytes(const Layout& layout) {
  return 12 + (layout.offload.parameters && layout.precision == config::Precision::kBf16 ? 2 : 0);
}

HostPlan host_plan(const Layout& layout, int rank) {
  HostPlan plan;
  if (!layout.offload.optimizer && !layout.offload.activations) return plan;
  plan.activations = activation_bytes(layout, rank);
  std::vector<std::pair<int64_t, int>> units;  // elements of the shard, layer
  if (layout.offload.optimizer)
    for (const arch::FlatUnit& unit : layout.flat_layout(rank).units)
      units.emplace_back(unit.numel() / layout.shards(), unit.layer);
  std::sort(units.begin(), units.end());
  const int64_t per_element = offloaded_state_bytes(layout);
  for (const auto& [numel, layer] : units) {
    plan.gradients += numel * 4;
    plan.states += numel * per_element;
  }
  const int64_t limit = layout.offload.host_limit;
  HostPlan least = plan;
  for (size_t next = 0; limit > 0 && plan.host() > limit; ++next) {
    if (!layout.offload.disk || next == units.size()) refuse(layout, least);
    const auto& [numel, layer] = units[next];
    plan.states -= numel * per_element;
    plan.disk += numel * per_element;
    plan.staging = 2 * numel * per_element;  // ascending: the largest so far
    plan.disk_units.push_back(layer);
    if (plan.host() < least.host()) least = plan;
  }
  std::sort(plan.disk_units.begin(), plan.disk_units.end());
  return plan;
}

}  // namespace lockstep::program

#include "lockstep/plan/time/stage_memory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/program/predict/memory.h"

namespace lockstep::plan {

using program::MemoryBytes;
using program::MemoryCategory;

namespace {

// A step whose ranks have room for so many times the rows of balanced routing.
struct Bounded {
  Bounded(program::Layout whole, program::JudgedSteps made, double imbalance) : layout(std::move(whole)), steps(std::move(made)) {
    layout.moe.imbalance_limit = imbalance;
    for (program::MadeStep& step : steps.made) step.layout.moe.imbalance_limit = imbalance;
  }
  program::Layout layout;
  program::JudgedSteps steps;
};

StageEstimate estimate_of(const MemoryBytes& bytes, const Stack& stack) {
  const auto of = [&](MemoryCategory category) { return static_cast<double>(bytes[category]); };
  StageEstimate stage{.parameters = of(MemoryCategory::kParameters),
                      .gradients = of(MemoryCategory::kGradients),
                      .optimizer = of(MemoryCategory::kOptimizer),
                      .activations = of(MemoryCategory::kActivations),
                      .buffers = of(MemoryCategory::kBuffers),
                      .peak = static_cast<double>(bytes.peak)};
  stage.reserved = stage.peak * (1 + stack.fragmentation) + stack.reserved;
  return stage;
}

int blocks_of(const program::Layout& layout, int rank) {
  const auto layers = layout.layers_of(rank);
  return static_cast<int>(std::ranges::count_if(layers, [&](int layer) { return layer > 0 && layer < layout.num_layers() - 1; }));
}

}  // namespace

bool has_room_for_all_rows(const program::Layout& layout) {
  return layout.model.has_experts() && layout.ep * layout.etp > 1 && !layout.moe.imbalance_limit && !layout.moe.capacity_factor && !layout.moe.static_buffers;
}

StageMemory stage_memory(const program::Layout& layout, const program::JudgedSteps& steps, const Cluster& cluster, const Stack& stack,
                         const EstimateOptions& options) {
  std::optional<Bounded> bounded;
  if (has_room_for_all_rows(layout)) bounded.emplace(layout, steps, std::max(1.0, options.imbalance));
  program::RankMemory memory(bounded ? bounded->layout : layout, bounded ? bounded->steps : steps);
  StageMemory result;
  for (int stage = 0; stage < layout.pipeline.ranks; ++stage) {
    const int rank = stage * layout.pipelines();
    const MemoryBytes& bytes = memory.of(rank);
    StageEstimate& estimate = result.stages.emplace_back(estimate_of(bytes, stack));
    estimate.stage = stage;
    estimate.layers = blocks_of(layout, rank);
    result.host = std::max(result.host, static_cast<double>(bytes[MemoryCategory::kHost]) * cluster.devices_per_node);
  }
  return result;
}

bool fits(const StageMemory& memory, const Cluster& cluster) {
  const auto there = [](double needed, double room) { return room <= 0 || needed <= room; };
  const bool devices = std::ranges::all_of(memory.stages, [&](const StageEstimate& stage) { return there(stage.reserved, cluster.device.memory); });
  return devices && there(memory.host, cluster.host_memory);
}

}  // namespace lockstep::plan

#include "lockstep/program/predict/memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/predict/memory_walk.h"

namespace lockstep::program {
namespace {

// Activations are counted at the borders of actions, all else wherever it is most.
void note(const MemoryPoint& point, MemoryBytes& bytes) {
  for (size_t i = 0; i < kNumMemoryCategories; ++i) {
    const bool border = i == static_cast<size_t>(MemoryCategory::kActivations);
    bytes.bytes[i] = std::max(bytes.bytes[i], border ? point.after[i] : point.within[i]);
  }
  bytes.peak = std::max(bytes.peak, device_total(point.within));
}

}  // namespace

std::string_view category_name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParameters:
      return "parameters";
    case MemoryCategory::kGradients:
      return "gradients";
    case MemoryCategory::kOptimizer:
      return "optimizer";
    case MemoryCategory::kActivations:
      return "activations";
    case MemoryCategory::kBuffers:
      return "buffers";
    case MemoryCategory::kHost:
      return "host";
  }
  throw InternalError("no such category");
}

int64_t device_total(const MemoryArray& bytes) {
  int64_t sum = 0;
  for (const int64_t value : bytes) sum += value;
  return sum - bytes[static_cast<size_t>(MemoryCategory::kHost)];
}

std::vector<arch::LayerCost> layer_costs(const Layout& layout, int rank) {
  std::map<std::pair<arch::LayerKind, arch::Recompute>, arch::LayerCost> known;  // blocks that recompute alike cost the same
  std::vector<arch::LayerCost> costs;
  for (const arch::LayerSpec& layer : arch::layer_table(layout.model)) {
    const arch::Recompute recompute = layout.recompute_of(static_cast<int>(costs.size()));
    const auto [cost, fresh] = known.try_emplace({layer.kind, recompute});
    if (fresh)
      cost->second = arch::layer_cost(layout.model, layer,
                                      {.batch = layout.micro_batch, .seq_len = layout.seq_len,
                                       .element_size = layout.element_size(), .threads = layout.threads,
                                       .tensor = layout.tensor_shard(rank), .recompute = recompute,
                                       .overlap = layout.overlap});
    costs.push_back(cost->second);
  }
  return costs;
}

MemoryTimeline memory_timeline(const Layout& layout, const Program& program, int rank) {
  MemoryWalk walk(layout, program, rank);
  MemoryTimeline timeline{.before = walk.live(), .points = {}};
  for (const Action& action : program.list(rank)) timeline.points.push_back(walk.step(action));
  walk.check_end();
  return timeline;
}

MemoryBytes predict_memory(const Layout& layout, const Program& program, int rank) {
  const MemoryTimeline timeline = memory_timeline(layout, program, rank);
  MemoryBytes bytes;
  note({.within = timeline.before, .after = timeline.before}, bytes);
  for (const MemoryPoint& point : timeline.points) note(point, bytes);
  return bytes;
}

}  // namespace lockstep::program

#include "lockstep/program/predict/memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/planned_calls.h"
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

// Of matrices the most of any rank is predicted.
bool sums_by_shard(const Layout& layout, const Action& action) {
  return sums_partial(action.kind) && differs_by_shard(layout, action);
}

// The largest values, if what an action copies of a rank's shard were so many bytes.
MemoryBytes with_copy(const Layout& layout, const std::vector<Action>& actions, const MemoryTimeline& timeline, int64_t copied) {
  MemoryBytes bytes;
  MemoryArray before = timeline.before;
  note({.within = before, .after = before}, bytes);
  for (size_t i = 0; i < actions.size(); ++i) {
    MemoryPoint point = timeline.points[i];
    if (sums_by_shard(layout, actions[i])) {
      for (size_t c = 0; c < kNumMemoryCategories; ++c) point.within[c] = std::max(before[c], point.after[c]);
      point.within[static_cast<size_t>(MemoryCategory::kBuffers)] += copied;
    }
    note(point, bytes);
    before = point.after;
  }
  return bytes;
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

const MemoryBytes& RankMemory::of(int rank) {
  const RankClass of_rank = class_of(program_, layout_, rank);
  auto found = known_.find(of_rank);
  if (found == known_.end()) found = known_.emplace(of_rank, predict(rank)).first;
  Alike& alike = found->second;
  if (!alike.by_shard) return alike.bytes;
  const auto [bytes, fresh] = alike.shards.try_emplace(layout_.shard(rank));
  if (fresh) bytes->second = predict_memory(layout_, program_, rank);
  return bytes->second;
}

// No shard holds more of what is copied than there is: where all of it makes no difference, no shard does.
RankMemory::Alike RankMemory::predict(int rank) const {
  const MemoryTimeline timeline = memory_timeline(layout_, program_, rank);
  const std::vector<Action>& actions = program_.list(rank);
  const auto differs = [&](const Action& action) { return sums_by_shard(layout_, action); };
  Alike alike{.bytes = with_copy(layout_, actions, timeline, 0)};
  if (std::none_of(actions.begin(), actions.end(), differs)) return alike;
  const PartialGradients all = partial_gradients(layout_.param_table(rank));
  const int64_t most = std::max(all.of_axis, all.of_copies) * static_cast<int64_t>(sizeof(float));
  alike.by_shard = alike.bytes != with_copy(layout_, actions, timeline, most);
  return alike;
}

}  // namespace lockstep::program

#include "lockstep/program/predict/memory.h"

#include <algorithm>
#include <optional>
#include <set>

#include "lockstep/arch/layer_description.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/planned_calls.h"

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

// The largest values; if what an action copies of a rank's shard were so many bytes, where that is given.
MemoryBytes largest(const Layout& layout, const std::vector<Action>& actions, const MemoryTimeline& timeline, std::optional<int64_t> copied = {}) {
  MemoryBytes bytes;
  MemoryArray before = timeline.before;
  note({.within = before, .after = before}, bytes);
  for (size_t i = 0; i < actions.size(); ++i) {
    MemoryPoint point = timeline.points[i];
    if (copied && sums_by_shard(layout, actions[i])) {
      for (size_t c = 0; c < kNumMemoryCategories; ++c) point.within[c] = std::max(before[c], point.after[c]);
      point.within[static_cast<size_t>(MemoryCategory::kBuffers)] += *copied;
    }
    note(point, bytes);
    before = point.after;
  }
  return bytes;
}

// What a layer takes follows from the shapes of the rank's parameters of it, and the first ranks of tp have the larger parts
// (mesh::shard_range): where the last has as much as the first, all have. One layer of each pattern speaks for the others.
bool equal_parts(const Layout& layout) {
  const int period = piece_period(layout);
  if (period == 1) return true;
  std::set<int> patterns;
  std::vector<int> layers;
  for (const arch::LayerSpec& layer : arch::layer_table(layout.model))
    if (patterns.insert(arch::layer_pattern(layout.model, layer)).second) layers.push_back(layer.index);
  const auto table = [&](int rank) { return arch::param_table(layout.model, layout.tensor_shard(rank), layers); };
  return std::ranges::equal(table(0), table(period - 1), {}, &arch::ParamSpec::local_shape, &arch::ParamSpec::local_shape);
}

}  // namespace

std::string_view category_name(MemoryCategory category) {
  constexpr std::array<std::string_view, kNumMemoryCategories> kNames = {"parameters", "gradients", "optimizer", "activations", "buffers", "host"};
  return kNames.at(static_cast<size_t>(category));
}

int64_t device_total(const MemoryArray& bytes) {
  int64_t sum = 0;
  for (const int64_t value : bytes) sum += value;
  return sum - bytes[static_cast<size_t>(MemoryCategory::kHost)];
}

MemoryBytes predict_memory(const Layout& layout, const Program& program, int rank, int64_t left_out) {
  return largest(layout, program.list(rank), memory_timeline(layout, program, rank, left_out));
}

RankMemory::RankMemory(const Layout& layout, const Program& program)
    : layout_(layout), program_(program), classes_(program, layout), equal_parts_(equal_parts(layout)) {}

RankMemory::RankMemory(const Layout& layout, const JudgedSteps& steps) : RankMemory(layout, steps.first().program) {
  steps_ = &steps;
}

RankMemory::Known& RankMemory::known(int rank) {
  const size_t of_class = equal_parts_ ? classes_.row_of(rank) : classes_.of(rank);
  auto found = known_.find(of_class);
  if (found == known_.end()) found = known_.emplace(of_class, predict(rank)).first;
  return found->second;
}

const MemoryBytes& RankMemory::of(int rank) {
  Known& alike = known(rank);
  if (!alike.by_shard) return alike.bytes;
  const auto [bytes, fresh] = alike.shards.try_emplace(layout_.shard(rank));
  if (fresh)
    bytes->second = over_steps([&](const Layout& layout, const Program& program, int64_t left_out) {
      return std::vector{predict_memory(layout, program, rank, left_out)};
    })[0];
  return bytes->second;
}

std::vector<RankClasses::Alike> RankMemory::among(int begin, int end) {
  std::vector<RankClasses::Alike> found = classes_.among(begin, end);
  const auto by_shard = [&](const RankClasses::Alike& alike) { return known(alike.first).by_shard; };
  if (std::none_of(found.begin(), found.end(), by_shard)) return found;
  found.clear();
  for (int rank = begin; rank < end; ++rank) found.push_back({.first = rank, .ranks = 1});
  return found;
}

// What `of` says of the step, whole or by the shorter ones.
template <typename Of>
std::vector<MemoryBytes> RankMemory::over_steps(const Of& of) const {
  if (steps_ == nullptr) return of(layout_, program_, 0);
  std::vector<std::vector<MemoryBytes>> said;
  for (const MadeStep& step : steps_->made) said.push_back(of(step.layout, step.program, step.left_out));
  return said.front() == said.back() ? said.front() : of(layout_, make_program(layout_), 0);
}

// No shard holds more of what is copied than there is: where all of it makes no difference, no shard does.
RankMemory::Known RankMemory::predict(int rank) const {
  const auto most = [&] {
    const PartialGradients all = partial_gradients(layout_.param_table(rank));
    return std::max(all.of_axis, all.of_copies) * static_cast<int64_t>(sizeof(float));
  };
  const std::vector<MemoryBytes> bytes = over_steps([&](const Layout& layout, const Program& program, int64_t left_out) {
    const MemoryTimeline timeline = memory_timeline(layout, program, rank, left_out);
    const std::vector<Action>& actions = program.list(rank);
    const auto differs = [&](const Action& action) { return sums_by_shard(layout, action); };
    const int64_t copied = std::any_of(actions.begin(), actions.end(), differs) ? most() : 0;
    return std::vector{largest(layout, actions, timeline, 0), largest(layout, actions, timeline, copied)};
  });
  return {.bytes = bytes[0], .by_shard = bytes[0] != bytes[1]};
}

}  // namespace lockstep::program

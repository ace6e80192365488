#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lockstep/program/matrices.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/rank_class.h"

namespace lockstep::program {
namespace {

// Of one unit. Zero 1 and 2: every rank needs all its parameters again.
void step_unit(const Layout& layout, int unit, std::vector<Action>& actions) {
  actions.push_back({.kind = ActionKind::kStep, .unit = unit});
  if (layout.shards_of_unit(unit) > 1 && layout.zero < 3) actions.push_back(unshard(unit));
}

// While owners orthogonalise the matrices of a unit, those of the next are on their way to them, and its own on their way back while
// the next are orthogonalised. States on the host: one unit at a time, so that no more lie in the buffers of a disk.
void step_matrices(const Layout& layout, int rank, const std::set<int>& scattered, std::vector<Action>& actions) {
  std::vector<int> units;
  for (const arch::FlatUnit& unit : layout.flat_layout(rank).units) units.push_back(unit.id);
  const auto moves = [&](size_t i) { return i < units.size() && scattered.contains(units[i]); };
  const auto add = [&](ActionKind kind, size_t i) {
    if (moves(i)) actions.push_back({.kind = kind, .unit = units[i]});
  };
  const bool ahead = layout.overlap && !layout.offload.optimizer;
  for (size_t i = 0; i < units.size(); ++i) {
    if (!ahead || i == 0) add(ActionKind::kGatherUpdate, i);
    if (ahead) add(ActionKind::kGatherUpdate, i + 1);
    add(ActionKind::kScatterUpdate, i);
    if (ahead && i > 0) step_unit(layout, units[i - 1], actions);
    if (!ahead) step_unit(layout, units[i], actions);
  }
  if (ahead) step_unit(layout, units.back(), actions);
}

// By unit, the first layers first, where something moves before or behind it.
void step(const Layout& layout, int rank, std::vector<Action>& actions) {
  const std::set<int> scattered = scattered_units(layout, rank);
  if (!scattered.empty()) return step_matrices(layout, rank, scattered, actions);
  if (!layout.shares_states() || layout.zero == 3) return actions.push_back({.kind = ActionKind::kStep});
  for (const arch::FlatUnit& unit : layout.flat_layout(rank).units) step_unit(layout, unit.id, actions);
}

// The server updates and its workers do not: a list that both ran is two from here on.
void part_workers(Program& program, const Layout& layout) {
  const RankClasses classes(program, layout);
  std::map<std::pair<int32_t, bool>, int32_t> parted;  // by the list that they ran, and whether they update
  std::vector<int32_t> runs;                           // by row of classes; that of a server stands first
  for (const int rank : classes.first_ranks()) {
    const int32_t ran = program.list_of[static_cast<size_t>(rank)];
    const bool owner = layout.owns_optimizer(rank);
    const auto [own, fresh] = parted.try_emplace({ran, owner}, ran);
    if (fresh && parted.contains({ran, !owner})) {
      own->second = static_cast<int32_t>(program.lists.size());
      std::vector<Action> copy = program.list(rank);
      program.lists.push_back(std::move(copy));
    }
    runs.push_back(own->second);
  }
  for (int rank = 0; rank < program.world_size(); ++rank)
    program.list_of[static_cast<size_t>(rank)] = runs[classes.row_of(rank)];
}

}  // namespace

Program update(Program program, const Layout& layout) {
  if (layout.server_mode()) part_workers(program, layout);
  const std::vector<Bucket> buckets = program.buckets;
  return with_lists(std::move(program), [&](int rank, std::vector<Action> actions) {
    actions.push_back({.kind = ActionKind::kLoss});
    const bool owner = layout.owns_optimizer(rank);
    if (owner && layout.tied_peer(rank) >= 0) actions.push_back({.kind = ActionKind::kReduceTied, .unit = 0});
    if (owner && std::ranges::any_of(layout.param_table(rank), &arch::ParamSpec::partial)) actions.push_back({.kind = ActionKind::kReducePartial});
    actions.push_back({.kind = ActionKind::kNorm});
    if (owner) step(layout, rank, actions);
    for (size_t i = 0; layout.server_mode() && i < buckets.size(); ++i) {
      if (buckets[i].pipeline != layout.pipeline_rank(rank)) continue;
      actions.push_back({.kind = ActionKind::kPull, .bucket = static_cast<int>(i)});
    }
    return actions;
  });
}

}  // namespace lockstep::program

#include "lockstep/program/verify/rules.h"

#include <algorithm>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/matrices.h"
#include "lockstep/program/names.h"
#include "lockstep/program/passes/passes.h"

namespace lockstep::program {
namespace {

class UpdateCheck {
 public:
  UpdateCheck(const Program& program, const Layout& layout, int rank, Pass after)
      : program_(program),
        layout_(layout),
        rank_(rank),
        after_(after),
        owner_(layout.owns_optimizer(rank)),
        actions_(program.list(rank)),
        num_layers_(layout.num_layers()) {}

  std::vector<std::string> run() {
    for (size_t i = 0; i < actions_.size(); ++i)
      if (!computes(actions_[i].kind)) at_[actions_[i].kind].push_back(i);
    if (at_[ActionKind::kLoss].size() != 1 || at_[ActionKind::kNorm].size() != 1) {
      problem("update", cat(at_[ActionKind::kLoss].size(), " LOSS and ", at_[ActionKind::kNorm].size(),
                            " NORM; should be 1 and 1"));
    } else if (check_steps()) {
      check_partial();
      check_matrices();
      check_tied();
      check_order();
    }
    return std::move(problems_);
  }

 private:
  void problem(const char* rule, const std::string& what) {
    problems_.push_back(cat("[", rule, "] rank ", rank_, ": ", what));
  }
  std::string text(size_t position) const { return action_text(actions_[position], program_.buckets, num_layers_); }

  // One STEP of all parameters, or one of every unit, on the ranks that own optimizer state.
  bool check_steps() {
    const bool gathered_after = layout_.shards() > 1 && !layout_.sharded_parameters();
    const bool by_unit = gathered_after || (owner_ && scatters_matrices(layout_, rank_)) ||
                         (layout_.offload.optimizer && after_ >= Pass::kOffload);
    std::map<int, int> times, wanted;
    for (size_t position : at_[ActionKind::kStep]) times[actions_[position].unit] += 1;
    if (owner_ && !by_unit) wanted[-1] = 1;
    if (owner_ && by_unit)
      for (const arch::FlatUnit& unit : layout_.flat_layout(rank_).units) wanted[unit.layer] = 1;
    if (times == wanted) return true;
    std::vector<std::string> found;
    for (const auto& [unit, count] : times)
      found.push_back(cat(count, " STEP of ", unit < 0 ? "all" : layer_label(unit, num_layers_)));
    problem("update", cat(found.empty() ? "no STEP" : join(found, ", "), "; should be ",
                          !owner_   ? "none"
                          : by_unit ? "1 of every unit"
                                    : "1 of all"));
    return false;
  }

  // Every gradient that is Partial on the tp axis is summed before anything reads it.
  void check_partial() {
    const std::vector<size_t>& partial = at_[ActionKind::kReducePartial];
    const size_t wanted = owner_ && has_partial(layout_.param_table(rank_)) ? 1 : 0, norm = at_[ActionKind::kNorm][0];
    if (partial.size() != wanted) return problem("partial", cat(partial.size(), " REDUCE_PARTIAL; should be ", wanted));
    if (partial.empty()) return;
    if (partial[0] > norm) problem("partial", "REDUCE_PARTIAL after NORM");
    for (size_t i = partial[0] + 1; i < actions_.size(); ++i)
      if (reduces(actions_[i].kind) || computes(actions_[i].kind))
        problem("partial", cat(text(i), " after REDUCE_PARTIAL"));
  }

  // Of every unit with scattered matrices, on the ranks that own its states: NORM, GATHER_UPDATE, SCATTER_UPDATE, STEP.
  void check_matrices() {
    const arch::FlatLayout flat = layout_.flat_layout(rank_);
    const auto of = [&](ActionKind kind, int unit) {
      std::vector<size_t> found;
      for (const size_t position : at_[kind])
        if (actions_[position].unit == unit) found.push_back(position);
      return found;
    };
    size_t known = 0;
    for (const arch::FlatUnit& unit : flat.units) {
      const size_t wanted = owner_ && scatters_matrices(layout_, rank_, unit.layer) ? 1 : 0;
      const std::vector<size_t> gathers = of(ActionKind::kGatherUpdate, unit.layer), scatters = of(ActionKind::kScatterUpdate, unit.layer);
      known += gathers.size() + scatters.size();
      if (gathers.size() != wanted || scatters.size() != wanted) {
        problem("matrices", cat(layer_label(unit.layer, num_layers_), ": ", gathers.size(), " GATHER_UPDATE and ", scatters.size(),
                                " SCATTER_UPDATE; should be ", wanted, " and ", wanted));
        continue;
      }
      if (wanted == 0) continue;
      if (gathers[0] < at_[ActionKind::kNorm][0]) problem("matrices", cat(text(gathers[0]), " before NORM, which scales the gradients"));
      if (scatters[0] < gathers[0]) problem("matrices", cat(text(scatters[0]), " before ", text(gathers[0])));
      const std::vector<size_t> steps = of(ActionKind::kStep, unit.layer);
      if (steps.empty() || steps[0] < scatters[0]) problem("matrices", cat("STEP before ", text(scatters[0])));
    }
    if (known != at_[ActionKind::kGatherUpdate].size() + at_[ActionKind::kScatterUpdate].size())
      problem("matrices", "GATHER_UPDATE or SCATTER_UPDATE of a unit that is not held");
  }

  // Both ranks that hold the parameters sum their gradients, each after its own reductions.
  void check_tied() {
    const std::vector<size_t>& tied = at_[ActionKind::kReduceTied];
    const size_t wanted = owner_ && layout_.tied_peer(rank_) >= 0 ? 1 : 0;
    if (tied.size() != wanted) return problem("tied", cat(tied.size(), " REDUCE_TIED; should be ", wanted));
    if (tied.empty()) return;
    for (const ActionKind kind : {ActionKind::kReducePartial, ActionKind::kNorm})
      for (const size_t position : at_[kind])
        if (position < tied[0]) problem("tied", cat(text(position), " before REDUCE_TIED"));
    const std::vector<arch::ParamSpec> table = layout_.param_table(rank_);
    for (size_t i = tied[0] + 1; i < actions_.size(); ++i) {
      const std::vector<int> units =
          computes(actions_[i].kind) ? units_written(actions_[i], table, num_layers_ - 1) : std::vector<int>();
      const bool adds = std::ranges::find(units, actions_[tied[0]].unit) != units.end();
      if (reduces(actions_[i].kind) || adds) problem("tied", cat(text(i), " after REDUCE_TIED"));
    }
  }

  void check_order() {
    const size_t loss = at_[ActionKind::kLoss][0], norm = at_[ActionKind::kNorm][0];
    const size_t step = owner_ ? at_[ActionKind::kStep][0] : norm;  // a worker's parameters are settled by NORM
    if (norm < loss) problem("update", "NORM before LOSS, which brings the number of tokens");
    if (step < norm) problem("update", "STEP before NORM");
    for (size_t i = 0; i < actions_.size(); ++i) {
      const ActionKind kind = actions_[i].kind;
      if (reduces(kind) && i > norm) problem("update", cat(text(i), " after NORM"));
      if (computes(kind) && i > step)
        problem("stale", cat(text(i), " after the parameters of the next step"));
      else if (computes(kind) && i > loss)
        problem("update", cat(text(i), " after LOSS"));
    }
    check_pulls(std::max(norm, step));
  }

  void check_pulls(size_t updated) {
    std::map<int, int> times;  // bucket -> PULL
    for (size_t position : at_[ActionKind::kPull]) {
      times[actions_[position].bucket] += 1;
      if (position < updated) problem("pull", cat(text(position), " before the update"));
    }
    const int wanted = layout_.server_mode() ? 1 : 0, coordinate = layout_.pipeline_rank(rank_);
    for (int bucket = 0; bucket < static_cast<int>(program_.buckets.size()); ++bucket) {
      const int here = program_.buckets[static_cast<size_t>(bucket)].pipeline == coordinate ? wanted : 0;
      if (times[bucket] != here) problem("pull", cat("bucket ", bucket, " is pulled ", times[bucket], " times"));
    }
  }

  const Program& program_;
  const Layout& layout_;
  const int rank_;
  const Pass after_;
  const bool owner_;
  const std::vector<Action>& actions_;
  const int num_layers_;
  std::map<ActionKind, std::vector<size_t>> at_;  // positions
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> check_update(const Program& program, const Layout& layout, int rank, Pass after) {
  return UpdateCheck(program, layout, rank, after).run();
}

}  // namespace lockstep::program

#include "lockstep/program/verify/rules.h"

#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/program/passes/schedule_file.h"

namespace lockstep::program {
namespace {

// Where an action of some place and microbatch stands, and how many of them there are.
struct Found {
  int at = -1;
  int times = 0;
};

class PassCheck : RankCheck {
 public:
  PassCheck(const Program& program, const Layout& layout, int rank, Pass after)
      : RankCheck(program, layout, rank),
        after_(after),
        microbatches_(static_cast<int>(layout.num_microbatches())),
        places_(after == Pass::kSchedule ? layout.pipeline.stages_of(layout.pipeline_rank(rank)) : layout.layers_of(rank)),
        slots_(static_cast<size_t>(after == Pass::kSchedule ? layout.pipeline.stages() : layout.num_layers()), -1) {
    for (size_t slot = 0; slot < places_.size(); ++slot) slots_[static_cast<size_t>(places_[slot])] = static_cast<int>(slot);
    for (auto& found : passes_) found.resize(places_.size() * static_cast<size_t>(microbatches_));
    if (layout.pipeline.kind == ScheduleKind::kFile) follow_grid();
  }

  std::vector<std::string> run() {
    for (int i = 0; i < static_cast<int>(actions_.size()); ++i) collect(actions_[static_cast<size_t>(i)], i);
    for (const int place : places_)
      for (int m = 0; m < microbatches_; ++m) check_place(place, m);
    return std::move(problems_);
  }

 private:
  enum Part { kF, kI, kW };  // B counts as I and W

  std::string text(int position) const { return RankCheck::text(static_cast<size_t>(position)); }
  std::string name(int place, int microbatch) const {
    return cat(after_ == Pass::kSchedule ? cat("stage ", place) : RankCheck::name(place), " m", microbatch);
  }

  Found& pass(Part part, int place, int microbatch) {
    const auto slot = static_cast<size_t>(slots_[static_cast<size_t>(place)]), width = static_cast<size_t>(microbatches_);
    return passes_[part][slot * width + static_cast<size_t>(microbatch)];
  }

  void collect(const Action& action, int position) {
    const auto add = [&](Found& found) { found = {.at = position, .times = found.times + 1}; };
    const Work work = work_of(action.kind);
    if (work == Work::kNone || work == Work::kAgain || !ends_pass(action)) return;  // [life] has the other parts
    const int place = after_ == Pass::kSchedule ? action.stage : action.layer, m = action.microbatch;
    if (slots_[static_cast<size_t>(place)] < 0)
      return problem("once", cat(text(position), " is not of what this rank holds"));
    if (work == Work::kForward) return add(pass(kF, place, m));
    if (goes_back(action.kind)) add(pass(kI, place, m));
    if (adds_to_weights(action.kind)) add(pass(kW, place, m));
  }

  // Of a grid from a file: which microbatch stands before which.
  void follow_grid() {
    const std::vector<Action> actions = read_grid(layout_.pipeline.grid).ranks.at(static_cast<size_t>(layout_.pipeline_rank(rank_)));
    std::map<std::pair<Part, int>, int> last;  // by stage
    for (const Action& action : actions)
      for (const Part part : {kI, kW}) {
        if (!(part == kI ? goes_back(action.kind) : adds_to_weights(action.kind))) continue;
        int& latest = last.try_emplace({part, action.stage}, -1).first->second;
        before_[{part, action.stage, action.microbatch}] = std::exchange(latest, action.microbatch);
      }
  }
  // The microbatch whose backward (or W) at the same place stands before that of m in the schedule; -1: none.
  int previous(Part part, int place, int m) const {
    if (before_.empty()) return m - 1;
    return before_.at({part, after_ == Pass::kSchedule ? place : layout_.pipeline.stage_of(place), m});
  }

  bool sound(int place, int m) {
    return pass(kF, place, m).times == 1 && pass(kI, place, m).times == 1 && pass(kW, place, m).times == 1;
  }

  void check_place(int place, int m) {
    const Found forward = pass(kF, place, m), input = pass(kI, place, m), weight = pass(kW, place, m);
    if (forward.times == 1 && input.times == 1 && weight.times != 1)
      return problem("free", cat("what F ", name(place, m), " keeps is freed ", weight.times, " times"));
    if (!sound(place, m))
      return problem("once", cat(name(place, m), " has ", forward.times, " F, ", input.times, " I and ", weight.times,
                                 " W (a B is one of each)"));
    if (input.at < forward.at) problem("order", cat(text(input.at), " before its F"));
    if (weight.at < input.at) problem("order", cat("W before I of ", name(place, m)));
    // Otherwise sums over microbatches would be in another order than the schedule states.
    for (const Part part : {kI, kW}) {
      const int before = previous(part, place, m);
      if (before >= 0 && sound(place, before) && pass(part, place, m).at < pass(part, place, before).at)
        problem("order", cat(text(pass(part, place, m).at), " before that of m", before));
    }
    const bool has_below = place > 0 && slots_[static_cast<size_t>(place) - 1] >= 0;
    if (!has_below || !sound(place - 1, m)) return;
    if (pass(kF, place - 1, m).at > forward.at) problem("order", cat(text(forward.at), " before F of the layer below"));
    if (pass(kI, place - 1, m).at < input.at)
      problem("order", cat(text(pass(kI, place - 1, m).at), " before the backward of the layer above"));
  }

  const Pass after_;
  const int microbatches_;
  const std::vector<int> places_;  // stages or layers that this rank holds
  std::vector<int> slots_;         // where a place is among those, or -1
  std::array<std::vector<Found>, 3> passes_;  // by part, place and microbatch
  std::map<std::tuple<Part, int, int>, int> before_;  // by part (kI, kW), stage and microbatch; empty = ascending
};

}  // namespace

std::vector<std::string> check_passes(const Program& program, const Layout& layout, int rank, Pass after) {
  return PassCheck(program, layout, rank, after).run();
}

}  // namespace lockstep::program

#include "lockstep/program/verify/rules.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/program/effects.h"
#include "lockstep/program/verify/rank_check.h"

namespace lockstep::program {
namespace {

class GatherCheck : RankCheck {
 public:
  GatherCheck(const Program& program, const Layout& layout, int rank) : RankCheck(program, layout, rank) {
    for (const arch::FlatUnit& unit : layout.flat_layout(rank).units)
      units_[unit.layer].bytes = unit.numel() * layout.element_size();
  }

  std::vector<std::string> run() {
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      if (updates(action.kind)) step(action);
      if (gathers(action)) stepped_ ? gather_updated(i) : gather(i);
      if (drops(action)) drop(i);
      if (layout_.transient_parameters() && computes(action.kind)) compute(i);
    }
    if (stepped_ && updated_are_gathered())
      for (const auto& [layer, unit] : units_)
        if (unit.gathered_after_step != 1)
          problem("gather", cat(name(layer), " is gathered ", unit.gathered_after_step, " times after its STEP"));
    if (!stepped_) all_dropped("the end");
    return std::move(problems_);
  }

 private:
  struct Unit {
    int64_t bytes = 0;
    bool gathered = false;
    bool used = false;     // since it was gathered
    int last_use = -1;     // position
    bool dropped = false;  // since then
    int computed_before_drop = 0;
    bool stepped = false;
    int gathered_after_step = 0;
  };

  // From the ranks of dp_shard; with one shard the host takes their place.
  bool gathers(const Action& action) const {
    return action.kind == ActionKind::kUnshard || (instead_of_others(action) && fetches(action.kind));
  }
  bool drops(const Action& action) const {
    return action.kind == ActionKind::kReshard || (instead_of_others(action) && !fetches(action.kind));
  }
  bool instead_of_others(const Action& action) const {
    return is_move(action.kind) && action.moved == Moved::kParameters && layout_.shards() == 1 && layout_.offload.parameters;
  }
  bool updated_are_gathered() const { return layout_.shards() > 1 && !layout_.sharded_parameters(); }

  void step(const Action& action) {
    if (!stepped_) all_dropped("STEP");
    stepped_ = true;
    for (auto& [layer, unit] : units_)
      if (action.unit < 0 || action.unit == layer) unit.stepped = true;
  }

  void gather_updated(size_t i) {
    Unit& unit = units_[actions_[i].unit];
    if (!updated_are_gathered()) return problem("gather", cat(text(i), " after STEP: the next step gathers it"));
    if (!unit.stepped) problem("gather", cat(text(i), " before its STEP"));
    unit.gathered_after_step += 1;
  }

  void gather(size_t i) {
    if (!layout_.transient_parameters()) return problem("gather", cat(text(i), ", but no parameters are sharded"));
    Unit& unit = units_[actions_[i].unit];
    if (unit.gathered) problem("gather", cat(text(i), " while it is gathered"));
    if (unit.dropped && unit.computed_before_drop == computed_)
      problem("reshard", cat(name(actions_[i].unit), " is dropped and gathered again at once"));
    unit.gathered = true;
    unit.used = false;
  }

  void drop(size_t i) {
    Unit& unit = units_[actions_[i].unit];
    if (!unit.gathered)
      problem("reshard", cat(text(i), " of what is not gathered"));
    else if (!unit.used)
      problem("reshard", cat(text(i), " before anything read it"));
    unit.gathered = false;
    unit.dropped = true;
    unit.computed_before_drop = computed_;
  }

  void compute(size_t i) {
    ++computed_;
    for (int layer : units_read(actions_[i], table_)) {
      Unit& unit = units_[layer];
      if (!unit.gathered) problem("gather", cat(text(i), " reads ", name(layer), ", which is not gathered"));
      if (unit.dropped && unit.last_use >= 0 && stays(layer, static_cast<size_t>(unit.last_use), i))
        problem("reshard", cat(name(layer), " is dropped between ", text(static_cast<size_t>(unit.last_use)), " and ",
                               text(i), ", where this layout keeps it"));
      unit.used = true;
      unit.dropped = false;
      unit.last_use = static_cast<int>(i);
    }
    int64_t waiting = 0;
    for (const auto& [layer, unit] : units_) waiting += unit.gathered && !unit.used ? unit.bytes : 0;
    if (waiting > layout_.prefetch_limit)
      problem("prefetch", cat(waiting, " bytes wait beside ", text(i), "; prefetch_limit is ", layout_.prefetch_limit));
  }

  // Whether a unit that is read at `from` and next at `to` is to be kept in between.
  bool stays(int layer, size_t from, size_t to) const {
    if (actions_[from].microbatch == actions_[to].microbatch && !layout_.reshard_after_forward) return true;
    if (actions_[from].microbatch != actions_[to].microbatch && !layout_.reshard_after_microbatch) return true;
    for (size_t i = from + 1; i < to; ++i) {
      for (int read : units_read(actions_[i], table_))
        if (read != layer) return false;
    }
    return true;
  }

  void all_dropped(const char* when) {
    if (!layout_.transient_parameters()) return;
    for (const auto& [layer, unit] : units_)
      if (unit.gathered) problem("reshard", cat(name(layer), " is still gathered at ", when));
  }

  std::map<int, Unit> units_;
  int computed_ = 0;  // computing actions so far
  bool stepped_ = false;
};

}  // namespace

std::vector<std::string> check_gathered(const Program& program, const Layout& layout, int rank) {
  return GatherCheck(program, layout, rank).run();
}

}  // namespace lockstep::program

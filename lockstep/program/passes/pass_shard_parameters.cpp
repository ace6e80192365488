#include <algorithm>
#include <map>

#include "lockstep/program/effects.h"
#include "lockstep/program/passes/passes.h"

namespace lockstep::program {
namespace {

// Computing actions [first, last] between which a unit's parameters stay; gathered in front of computing action
// `begin`.
struct Stretch {
  int unit = 0;
  size_t first = 0, last = 0;
  size_t begin = 0;
};

// The plan of one rank's list.
class Gathering {
 public:
  Gathering(const Layout& layout, int rank, const std::vector<Action>& actions) : layout_(layout), actions_(actions) {
    for (const arch::FlatUnit& unit : layout.flat_layout(rank).units)
      bytes_[unit.id] = unit.numel() * layout.element_size(unit.group);
    EffectTable effects(layout, {}, rank);
    for (size_t i = 0; i < actions.size(); ++i) {
      if (!computes(actions[i].kind)) continue;
      computing_.push_back(i);
      std::vector<int>& reads = reads_.emplace_back();
      for (const Touch& touch : effects.of(actions[i]).touches)
        if (touch.what == Resource::kParameters) reads.push_back(touch.index);
    }
    find_stretches();
    place();
  }

  std::vector<Action> result() const {
    Insertions before;
    for (const Stretch& stretch : placed_)
      before[computing_[stretch.last] + 1].push_back({.kind = ActionKind::kReshard, .unit = stretch.unit});
    for (const Stretch& stretch : placed_) before[computing_[stretch.begin]].push_back(unshard(stretch.unit));
    return merged(actions_, before);
  }

 private:
  const Action& computing(size_t k) const { return actions_[computing_[k]]; }

  // A use at `k` of a unit that was used last at `before`: whether its parameters stay in between.
  bool stays(int unit, size_t before, size_t k) const {
    bool others = false;
    for (size_t i = before + 1; i < k && !others; ++i)
      others = std::any_of(reads_[i].begin(), reads_[i].end(), [&](int read) { return read != unit; });
    if (!others) return true;
    const bool same = computing(before).microbatch == computing(k).microbatch;
    return same ? !layout_.reshard_after_forward : !layout_.reshard_after_microbatch;
  }

  void find_stretches() {
    std::map<int, size_t> open;  // unit -> its latest stretch
    for (size_t k = 0; k < reads_.size(); ++k) {
      for (int unit : reads_[k]) {
        if (!layout_.transient_parameters(layout_.group_of(unit))) continue;
        const auto latest = open.find(unit);
        if (latest != open.end() && stays(unit, stretches_[latest->second].last, k)) {
          stretches_[latest->second].last = k;
        } else {
          open[unit] = stretches_.size();
          stretches_.push_back({.unit = unit, .first = k, .last = k, .begin = k});
        }
      }
    }
  }

  // In the order of first uses, so that a unit never waits behind one that is needed later.
  void place() {
    std::vector<int64_t> waiting(reads_.size(), 0);  // bytes gathered for later while computing action k runs
    std::map<int, size_t> latest;                    // unit -> in placed_
    size_t earliest = 0;
    for (Stretch stretch : stretches_) {
      const int64_t bytes = bytes_.at(stretch.unit);
      const auto before = latest.find(stretch.unit);
      const size_t dropped = before == latest.end() ? 0 : placed_[before->second].last + 1;
      const size_t ahead = std::min(static_cast<size_t>(layout_.prefetch), stretch.first);
      stretch.begin = std::max({earliest, dropped, stretch.first - ahead});
      for (size_t k = stretch.first; k-- > stretch.begin;)
        if (waiting[k] + bytes > layout_.prefetch_limit) stretch.begin = k + 1;
      for (size_t k = stretch.begin; k < stretch.first; ++k) waiting[k] += bytes;
      earliest = stretch.begin;
      if (before != latest.end() && stretch.begin == dropped) {
        placed_[before->second].last = stretch.last;
        continue;
      }
      latest[stretch.unit] = placed_.size();
      placed_.push_back(stretch);
    }
  }

  const Layout& layout_;
  const std::vector<Action>& actions_;
  std::map<int, int64_t> bytes_;         // of a unit's compute copy
  std::vector<size_t> computing_;        // positions of the computing actions
  std::vector<std::vector<int>> reads_;  // of each of them
  std::vector<Stretch> stretches_, placed_;
};

}  // namespace

Action unshard(int unit) { return {.kind = ActionKind::kUnshard, .unit = unit}; }

Program shard_parameters(Program program, const Layout& layout) {
  if (!layout.transient_parameters()) return program;
  return with_lists(std::move(program), [&](int rank, const std::vector<Action>& actions) {
    return Gathering(layout, rank, actions).result();
  });
}

}  // namespace lockstep::program

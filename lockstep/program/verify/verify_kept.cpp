#include <algorithm>
#include <utility>

#include "lockstep/program/effects.h"
#include "lockstep/program/verify/rules.h"

namespace lockstep::program {
namespace {

class KeepCheck : RankCheck {
 public:
  KeepCheck(const Program& program, const Layout& layout, int rank)
      : RankCheck(program, layout, rank), effects_(layout, program.buckets, rank), units_(static_cast<size_t>(layout.num_units())) {}

  std::vector<std::string> run() {
    // What is gathered comes from the ranks of dp_shard; with one shard the host takes their place.
    const State elsewhere = layout_.shards() > 1 ? kShardOnly : kAway;
    for (size_t i = 0; i < actions_.size(); ++i) {
      if (computes(actions_[i].kind)) ++computed_;
      for (const Touch& touch : effects_.of(actions_[i]).touches) {
        if (touch.what != Resource::kParameters) continue;
        if (touch.how == Access::kRead)
          read(touch.index, i);
        else if (touch.how == Access::kDrop && (touch.to & elsewhere) != 0)
          units_[static_cast<size_t>(touch.index)].dropped = computed_;
        else if ((touch.from & ~touch.to & elsewhere) != 0 && units_[static_cast<size_t>(touch.index)].dropped == computed_)
          problem("reshard", cat(name(touch.index), " is dropped and gathered again at once"));
      }
    }
    return std::move(problems_);
  }

 private:
  struct Unit {
    int last_use = -1;  // position
    int dropped = -1;   // since then, behind so many actions that compute
  };

  static bool reads(const Touch& touch) { return touch.what == Resource::kParameters && touch.how == Access::kRead; }

  void read(int unit, size_t at) {
    Unit& found = units_[static_cast<size_t>(unit)];
    if (found.dropped >= 0 && found.last_use >= 0 && stays(unit, static_cast<size_t>(found.last_use), at))
      problem("reshard", cat(name(unit), " is dropped between ", text(static_cast<size_t>(found.last_use)), " and ", text(at),
                             ", where this layout keeps it"));
    found = {.last_use = static_cast<int>(at)};
  }

  // Whether a unit that is read at `from` and next at `to` is to be kept in between.
  bool stays(int unit, size_t from, size_t to) {
    const bool same = actions_[from].microbatch == actions_[to].microbatch;
    if (!(same ? layout_.reshard_after_forward : layout_.reshard_after_microbatch)) return true;
    const auto reads_another = [unit](const Touch& touch) { return reads(touch) && touch.index != unit; };
    for (size_t i = from + 1; i < to; ++i)
      if (std::ranges::any_of(effects_.of(actions_[i]).touches, reads_another)) return false;
    return true;
  }

  EffectTable effects_;
  std::vector<Unit> units_;
  int computed_ = 0;  // actions so far
};

}  // namespace

std::vector<std::string> check_kept(const Program& program, const Layout& layout, int rank) {
  return layout.transient_parameters() ? KeepCheck(program, layout, rank).run() : std::vector<std::string>();
}

}  // namespace lockstep::program

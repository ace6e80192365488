// The rule that follows from what actions touch alone.
#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "lockstep/program/effects.h"
#include "lockstep/program/verify/rank_check.h"
#include "lockstep/program/verify/rules.h"

namespace lockstep::program {
namespace {

constexpr std::array<const char*, 10> kStateWords = {
    "this rank's shard alone", "on the host or on disk",   "on the device and the host",    "incomplete",
    "what W needs alone",      "not in this rank's sum yet", "part of a sum over other tokens", "part of a sum over copies",
    "part of a sum over tp",   "part of a sum over stages"};

std::string state_text(State state) {
  std::vector<std::string> words;
  for (size_t bit = 0; bit < kStateWords.size(); ++bit)
    if (((state >> bit) & 1U) != 0) words.emplace_back(kStateWords[bit]);
  return words.empty() ? "whole" : join(words, ", ");
}

// Made by one action and used up by another; all else is there from step to step.
bool comes_and_goes(Resource what) { return by_microbatch(what) || what == Resource::kTokens || what == Resource::kDirections; }

class LifeCheck : RankCheck {
 public:
  LifeCheck(const Program& program, const Layout& layout, int rank)
      : RankCheck(program, layout, rank),
        effects_(layout, program.buckets, rank),
        microbatches_(static_cast<size_t>(layout.num_microbatches())),
        indices_(2 * static_cast<size_t>(std::max(num_layers_, layout.pipeline.stages())) + 1),
        rows_(kResources * indices_, -1) {
    for (const arch::FlatUnit& unit : layout.flat_layout(rank).units) units_.push_back(unit.layer);
  }

  std::vector<std::string> run() {
    for (at_ = 0; at_ < actions_.size(); ++at_) {
      const Effects& effects = effects_.of(actions_[at_]);
      const bool starts = effects.join == Join::kAtTouch;
      for (const Touch& touch : effects.touches) {
        const bool changes = touch.how == Access::kCreate || touch.how == Access::kUpdate || touch.how == Access::kAdd;
        if (touch.index != kEvery)
          apply(touch, touch.index, starts && changes);
        else if (touch.what == Resource::kSent)
          end_sends();
        else if (comes_and_goes(touch.what))
          problem("life", cat(text(at_), " is of nothing"));
        else
          for (const int unit : units_) apply(touch, unit, starts && changes);
      }
    }
    at_end();
    return std::move(problems_);
  }

 private:
  static constexpr size_t kResources = static_cast<size_t>(Resource::kDirections) + 1;
  static constexpr State kAbsent = ~State{0};
  struct Cell {
    State state = kAbsent;
    bool started = false;  // and not joined
  };

  // A row has a cell, or one for each microbatch.
  Cell& cell(Resource what, int index, int microbatch) {
    int& row = rows_.at(static_cast<size_t>(what) * indices_ + static_cast<size_t>(index));
    if (row < 0) {
      row = static_cast<int>(cells_.size());
      cells_.resize(cells_.size() + (by_microbatch(what) ? microbatches_ : 1));
      if (!comes_and_goes(what)) cells_.back().state = effects_.at_rest(what, index);
    }
    return cells_[static_cast<size_t>(row) + (by_microbatch(what) ? static_cast<size_t>(microbatch) : 0)];
  }

  void apply(const Touch& touch, int index, bool starts) {
    Cell& found = cell(touch.what, index, actions_[at_].microbatch);
    found.started = starts;
    if (comes_and_goes(touch.what)) {
      if (touch.how == Access::kCreate) return create(touch, index, found);
      if (found.state == kAbsent) return problem("life", cat(text(at_), " without ", name(touch.what, index, actions_[at_].microbatch)));
    }
    if (!fits(touch, found.state))
      problem("life", cat(text(at_), ": ", name(touch.what, index, actions_[at_].microbatch), " is ", state_text(found.state)));
    if (touch.how == Access::kConsume && comes_and_goes(touch.what))
      found.state = kAbsent;
    else if (touch.index != kEvery || (found.state & touch.from) == touch.from)
      found.state = (found.state & ~touch.from) | touch.to;
  }

  void create(const Touch& touch, int index, Cell& found) {
    if (found.state != kAbsent) problem("life", cat(text(at_), ": ", name(touch.what, index, actions_[at_].microbatch), " is there already"));
    found.state = touch.to;
    if (touch.what == Resource::kSent) sent_.push_back(static_cast<size_t>(&found - cells_.data()));
  }

  // What is read is whole, but for what the action says; what is changed is here, and not yet as it will be.
  static bool fits(const Touch& touch, State state) {
    if (touch.index != kEvery && (state & touch.from) != touch.from) return false;
    const State more = state & ~touch.from, opens = touch.to & ~touch.from;
    switch (touch.how) {
      case Access::kRead:
      case Access::kConsume:
        return more == 0;
      case Access::kAdd:  // to what was opened before, or opened by this
        return (more & ~opens) == 0 && (more == 0 || more == opens);
      case Access::kCreate:
      case Access::kUpdate:
      case Access::kDrop:
        return (more & (kAway | touch.to)) == 0;
    }
    return false;
  }

  void end_sends() {
    for (const size_t sent : std::exchange(sent_, {})) cells_[sent] = {};
  }

  // Left are parameters and states on their way to where the next step finds them, and what it validates.
  void at_end() {
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row] < 0) continue;
      const auto what = static_cast<Resource>(row / indices_);
      const int index = static_cast<int>(row % indices_);
      const size_t count = by_microbatch(what) ? microbatches_ : 1;
      for (size_t i = 0; i < count; ++i) check_left(what, index, static_cast<int>(i), cells_[static_cast<size_t>(rows_[row]) + i]);
    }
  }
  void check_left(Resource what, int index, int microbatch, const Cell& left) {
    if (comes_and_goes(what)) {
      if (left.state != kAbsent) problem("life", cat("nobody takes ", name(what, index, microbatch)));
      return;
    }
    const bool stays = what == Resource::kParameters || what == Resource::kStates;
    const bool validated = layout_.pipeline.post_validation && (what == Resource::kLosses || what == Resource::kNorm);
    if (stays && left.state != effects_.at_rest(what, index))
      problem("life", cat(name(what, index, 0), " is left: ", state_text(left.state), "; found: ", state_text(effects_.at_rest(what, index))));
    if (left.started && !stays && !validated) problem("life", cat("nobody waits for ", name(what, index, 0)));
  }

  std::string name(Resource what, int index, int microbatch) const {
    switch (what) {
      case Resource::kInput:
        return cat("the input of ", RankCheck::name(index), " m", microbatch);
      case Resource::kOutputGrad:
        return cat("the gradient of the output of ", RankCheck::name(index), " m", microbatch);
      case Resource::kSaved:
        return cat("what ", RankCheck::name(index), " keeps of m", microbatch);
      case Resource::kSent:
        return cat("what stage ", index / 2, " sends of m", microbatch);
      case Resource::kParameters:
        return cat("the parameters of ", RankCheck::name(index));
      case Resource::kGradients:
        return cat("the gradient of ", RankCheck::name(index));
      case Resource::kStates:
        return cat("the optimizer state of ", RankCheck::name(index));
      case Resource::kLosses:
        return "the loss";
      case Resource::kTokens:
        return "the number of tokens";
      case Resource::kNorm:
        return "the norm";
      case Resource::kDirections:
        return cat("the matrices of ", RankCheck::name(index));
    }
    return "";
  }

  EffectTable effects_;
  const size_t microbatches_, indices_;
  std::vector<int> rows_;  // by resource and index: where its cells begin; -1: nothing touched it
  std::vector<Cell> cells_;
  std::vector<size_t> sent_;  // cells of what is on its way
  std::vector<int> units_;
  size_t at_ = 0;  // position
};

}  // namespace

std::vector<std::string> check_life(const Program& program, const Layout& layout, int rank) {
  return LifeCheck(program, layout, rank).run();
}

}  // namespace lockstep::program

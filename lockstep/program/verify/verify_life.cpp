// The rules that follow from what actions touch alone.
#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "lockstep/program/effects.h"
#include "lockstep/program/verify/rules.h"

namespace lockstep::program {
namespace {

constexpr size_t kEnough = 8;  // findings of a rank: what breaks early breaks what comes later
constexpr int kBuffers = 2;    // of the host: the unit at hand and the next one

struct Lack {
  State bit;
  std::string_view text;  // and what changes it, or has made it
};
constexpr Lack kLacks[] = {
    {kShardOnly, "up to date in this rank's shard or copy alone (before UNSHARD or PULL)"},
    {kAway, "on the host or on disk (before FETCH)"},
    {kCopied, "on the device and the host (after FETCH)"},
    {kForWeights, "cut down to what W needs (after I)"},
    {kOpen, "without this rank's share (before SHARD_GRAD)"},
    {kPartOfTokens, "part of a sum over other tokens (before REDUCE_GRAD or PUSH)"},
    {kPartOfCopies, "part of a sum over copies (before REDUCE_SHARD)"},
    {kPartOfTp, "part of a sum over tp (before REDUCE_PARTIAL)"},
    {kPartOfStages, "part of a sum over stages (before REDUCE_TIED)"},
    {kForExperts, "rows that have not left for the experts (before DISPATCH_F or COMBINE_B)"},
    {kAtExperts, "rows that the experts have not worked on (before part b)"},
    {kFromExperts, "results that are not back from the experts (before COMBINE_F or DISPATCH_B)"},
};

// By resource, what stands before and behind the layer, unit or stage that it is of.
constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"the input of ", ""},
    {"the gradient of the output of ", ""},
    {"what ", " keeps of"},
    {"what the parts of ", " have of"},
    {"what the backward parts of ", " have of"},
    {"what stage ", " sends of"},
    {"the parameters of ", ""},
    {"the gradient of ", ""},
    {"the optimizer state of ", ""},
    {"the loss", ""},
    {"the number of tokens", ""},
    {"the norm", ""},
    {"the matrices of ", ""},
};

static_assert(std::size(kNames) == static_cast<size_t>(Resource::kDirections) + 1);

std::string_view incomplete_text(Resource what) {
  if (what == Resource::kSaved) return "incomplete (before RECOMPUTE)";
  return what == Resource::kLosses ? "that of this rank (before LOSS)" : "not orthogonalised (before SCATTER_UPDATE)";
}

std::string state_text(Resource what, State state) {
  std::vector<std::string> words;
  for (const Lack& lack : kLacks)
    if ((state & lack.bit) != 0) words.emplace_back(lack.text);
  if ((state & kIncomplete) != 0) words.emplace_back(incomplete_text(what));
  return words.empty() ? "whole" : join(words, ", ");
}

// The sums of a gradient that come before the one that an action makes.
State sums_before(State made) {
  State before = 0;
  for (const State sum : kSums) {
    if ((made & sum) != 0) return before;
    before |= sum;
  }
  return 0;
}

bool made_in_step(Resource what) { return by_microbatch(what) || what == Resource::kTokens || what == Resource::kDirections; }

class LifeCheck : RankCheck {
 public:
  LifeCheck(const Program& program, const Layout& layout, int rank)
      : RankCheck(program, layout, rank),
        effects_(layout, program.buckets, rank),
        owner_(layout.owns_optimizer(rank)),
        microbatches_(static_cast<size_t>(layout.num_microbatches())),
        indices_(static_cast<size_t>(std::max(layout.num_units(), 2 * layout.pipeline.stages())) + 1),
        rows_(kResources * indices_, -1),
        bytes_(static_cast<size_t>(layout.num_units()), -1),
        uses_(bytes_.size()) {
    for (const arch::FlatUnit& unit : layout.flat_layout(rank).units) {
      units_.push_back(unit.id);
      bytes_[static_cast<size_t>(unit.id)] = unit.numel() * layout.element_size(unit.group);
    }
  }

  std::vector<std::string> run() {
    for (at_ = 0; at_ < actions_.size() && problems_.size() < kEnough; ++at_) {
      const Effects& effects = effects_.of(actions_[at_]);
      if (computes(actions_[at_].kind)) ++computed_;
      bool changes = false;
      for (const Touch& touch : effects.touches) {
        changes = changes || touch.how != Access::kRead;
        const bool makes = touch.how == Access::kCreate || touch.how == Access::kUpdate || touch.how == Access::kAdd;
        const bool starts = makes && effects.join == Join::kAtTouch;
        if (touch.index != kEvery)
          apply(touch, touch.index, starts);
        else if (touch.what == Resource::kSent)
          end_sends();
        else if (made_in_step(touch.what))
          problem("life", cat(text(at_), " is of nothing"));
        else
          for (const int unit : units_) apply(touch, unit, starts);
      }
      if (!changes) problem("life", cat(text(at_), " changes nothing"));
      check_room(effects);
    }
    at_end();
    return std::move(problems_);
  }

 private:
  static constexpr size_t kResources = std::size(kNames);
  static constexpr State kAbsent = ~State{0};
  struct Cell {
    State state = kAbsent;
    bool started = false;  // and not joined
  };
  struct Use {
    int last = -1;     // position
    int dropped = -1;  // since then, behind so many actions that compute
  };

  bool held(int unit) const { return bytes_.at(static_cast<size_t>(unit)) >= 0; }

  // As the step finds it. With post-validation loss and norm of the step before are there.
  State found(Resource what, int index) {
    if (made_in_step(what)) return kAbsent;
    if (what == Resource::kNorm) return layout_.pipeline.post_validation ? 0 : kAbsent;
    if (what != Resource::kLosses && !held(index)) return kAbsent;
    return what == Resource::kStates && !owner_ ? kAbsent : effects_.at_rest(what, index);
  }
  // And as the next one finds it, or who reads the result.
  State left(Resource what, int index) {
    if (what == Resource::kLosses || what == Resource::kNorm) return 0;
    if (what == Resource::kGradients) return owner_ ? kAbsent : 0;
    return found(what, index);
  }

  // A row has a cell, or one for each microbatch.
  Cell& cell(Resource what, int index, int microbatch) {
    int& row = rows_.at(static_cast<size_t>(what) * indices_ + static_cast<size_t>(index));
    if (row < 0) {
      row = static_cast<int>(cells_.size());
      cells_.resize(cells_.size() + (by_microbatch(what) ? microbatches_ : 1), {.state = found(what, index)});
    }
    return cells_[static_cast<size_t>(row) + (by_microbatch(what) ? static_cast<size_t>(microbatch) : 0)];
  }

  void apply(const Touch& touch, int index, bool starts) {
    if (touch.how == Access::kAdd && touch.what == Resource::kGradients && !held(index)) return;  // a layer without parameters
    if (touch.what == Resource::kParameters) keep(touch, index);
    Cell& there = cell(touch.what, index, actions_[at_].microbatch);
    if (touch.how == Access::kDrop && there.started)
      problem("life", cat(text(at_), " drops ", name(touch.what, index, 0), " before anything has used it"));
    count_ahead(touch.what, index, there, -1);
    there = {.state = behind(touch, index, there.state), .started = starts};
    count_ahead(touch.what, index, there, 1);
    if (touch.what == Resource::kSent) sent_.push_back(static_cast<size_t>(&there - cells_.data()));
  }

  // What it lacks behind the touch.
  State behind(const Touch& touch, int index, State state) {
    const auto of = [&] { return name(touch.what, index, actions_[at_].microbatch); };
    if (touch.how == Access::kCreate) {
      if (state != kAbsent) problem("life", cat(text(at_), " finds ", of(), " there already"));
      return touch.to;
    }
    if (state == kAbsent) {
      problem("life", cat(text(at_), " without ", of()));
      return kAbsent;
    }
    if (const State wanted = touch.how == Access::kRead && touch.index == kEvery ? 0 : touch.from; (state & wanted) != wanted)
      problem("life", cat(text(at_), " finds ", of(), " ", state_text(touch.what, state), "; expects ", state_text(touch.what, wanted)));
    else if (!fits(touch, state))
      problem("life", cat(text(at_), " finds ", of(), " ", state_text(touch.what, state)));
    if (touch.how == Access::kConsume) return kAbsent;
    return touch.how == Access::kRead ? state : (state & ~touch.from) | touch.to;
  }

  // What is read is whole, but for what the action says; what is changed is here, and not yet as it will be.
  static bool fits(const Touch& touch, State state) {
    const State more = state & ~touch.from, opens = touch.to & ~touch.from;
    if (touch.how == Access::kRead || touch.how == Access::kConsume) return more == 0;
    if (touch.how == Access::kAdd) return more == 0 || more == opens;  // to what was opened before, or opened by this
    return (more & (kAway | touch.to | sums_before(touch.from))) == 0;
  }

  void end_sends() {
    for (const size_t sent : std::exchange(sent_, {})) cells_[sent] = {};
  }

  // Gathered parameters: nothing is dropped that the layout keeps until its next use, or only to be gathered again at once.
  void keep(const Touch& touch, int unit) {
    Use& use = uses_[static_cast<size_t>(unit)];
    if (touch.how == Access::kRead) {
      if (use.dropped >= 0 && use.last >= 0 && stays(unit, static_cast<size_t>(use.last)))
        problem("reshard", cat(RankCheck::name(unit), " is dropped between ", text(static_cast<size_t>(use.last)), " and ", text(at_),
                               ", where this layout keeps it"));
      use = {.last = static_cast<int>(at_)};
    } else if (touch.how == Access::kDrop && (touch.to & elsewhere(unit)) != 0) {
      use.dropped = computed_;
    } else if ((touch.from & ~touch.to & elsewhere(unit)) != 0 && use.dropped == computed_) {
      problem("reshard", cat(RankCheck::name(unit), " is dropped and gathered again at once"));
    }
  }
  // What dropped parameters of the unit lack: the shards of others, or with one shard what the host has; 0: it is never dropped.
  State elsewhere(int unit) const {
    if (!layout_.transient_parameters(layout_.group_of(unit))) return 0;
    return layout_.shards_of_unit(unit) > 1 ? kShardOnly : kAway;
  }
  // Whether a unit that was read at `from` and is read here is to be kept in between.
  bool stays(int unit, size_t from) {
    const bool same = actions_[from].microbatch == actions_[at_].microbatch;
    if (!(same ? layout_.reshard_after_forward : layout_.reshard_after_microbatch)) return true;
    const auto reads_another = [unit](const Touch& touch) {
      return touch.what == Resource::kParameters && touch.how == Access::kRead && touch.index != unit;
    };
    for (size_t i = from + 1; i < at_; ++i)
      if (std::ranges::any_of(effects_.of(actions_[i]).touches, reads_another)) return false;
    return true;
  }

  // What lies in buffers for its next use: gathered parameters, shards that came from the host, states that came from disk.
  void count_ahead(Resource what, int index, const Cell& there, int sign) {
    if (what == Resource::kParameters && there.started) {
      if (there.state == 0) bytes_ahead_ += sign * bytes_[static_cast<size_t>(index)];
      if (there.state == kShardOnly && layout_.offload.parameters) shards_ahead_ += sign;
    } else if (what == Resource::kStates && (there.state & kAway) == 0 && effects_.at_rest(what, index) == kAway) {
      states_here_ += sign;
    }
  }
  void check_room(const Effects& effects) {
    if (computes(actions_[at_].kind) && bytes_ahead_ > layout_.prefetch_limit)
      problem("prefetch", cat(bytes_ahead_, " bytes wait beside ", text(at_), "; prefetch_limit is ", layout_.prefetch_limit));
    if (const int units = std::max(shards_ahead_, states_here_); effects.lane == Lane::kCopies && units > kBuffers)
      problem("prefetch", cat(text(at_), ": ", units, " units at a time; the host has buffers for ", kBuffers));
  }

  void at_end() {
    for (const Resource what : {Resource::kLosses, Resource::kNorm}) cell(what, 0, 0);
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row] < 0) continue;
      const auto what = static_cast<Resource>(row / indices_);
      const int index = static_cast<int>(row % indices_);
      const State expected = left(what, index);
      const size_t count = by_microbatch(what) ? microbatches_ : 1;
      for (size_t i = 0; i < count && problems_.size() < kEnough; ++i)
        if (const State state = cells_[static_cast<size_t>(rows_[row]) + i].state; state != expected)
          left_otherwise(what, name(what, index, static_cast<int>(i)), state, expected);
    }
  }
  void left_otherwise(Resource what, const std::string& of, State state, State expected) {
    if (state == kAbsent)
      problem("life", cat("nobody makes ", of));
    else if (expected == kAbsent)
      problem("life", cat("nobody takes ", of));
    else
      problem("life", cat("the step leaves ", of, " ", state_text(what, state), "; the next one expects it ", state_text(what, expected)));
  }

  std::string name(Resource what, int index, int microbatch) const {
    const auto& [before, behind] = kNames[static_cast<size_t>(what)];
    if (what == Resource::kLosses || what == Resource::kTokens || what == Resource::kNorm) return std::string(before);
    const std::string place = what == Resource::kSent ? cat(index / 2) : RankCheck::name(index);
    return cat(before, place, behind, by_microbatch(what) ? cat(" m", microbatch) : "");
  }

  EffectTable effects_;
  const bool owner_;  // of optimizer state
  const size_t microbatches_, indices_;
  std::vector<int> rows_;  // by resource and index: where its cells begin; -1: nothing touched it
  std::vector<Cell> cells_;
  std::vector<size_t> sent_;  // cells of what is on its way
  std::vector<int64_t> bytes_;  // by unit, of its compute copy; -1: this rank has none
  std::vector<int> units_;
  std::vector<Use> uses_;   // by unit
  int computed_ = 0;        // actions so far
  int64_t bytes_ahead_ = 0;
  int shards_ahead_ = 0, states_here_ = 0;
  size_t at_ = 0;  // position
};

}  // namespace

std::vector<std::string> check_life(const Program& program, const Layout& layout, int rank) {
  return LifeCheck(program, layout, rank).run();
}

}  // namespace lockstep::program

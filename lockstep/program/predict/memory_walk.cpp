#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/matrices.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/planned_calls.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::program {
namespace {

constexpr int64_t kFp32 = 4;
constexpr int64_t kTokenId = 8;
constexpr int64_t kLoss = 4;  // of a microbatch, from the head's backward to the end of the step

void add(MemoryArray& bytes, MemoryCategory category, int64_t count) { bytes[static_cast<size_t>(category)] += count; }

// What is alive while the actions of one rank run. What comes and goes is what actions touch (effects.h), with the bytes of each
// resource in its state; beside it the workspace inside of an action.
class MemoryWalk {
 public:
  // `left_out`: microbatches that stand in the middle of the step and not in the program (steps.h).
  MemoryWalk(const Layout& layout, const Program& program, int rank, int64_t left_out)
      : layout_(layout),
        program_(program),
        rank_(rank),
        left_out_(left_out),
        table_(layout.param_table(rank)),
        sizes_(unit_sizes(layout, table_)),
        costs_(layer_costs(layout, rank)),
        effects_(layout, program.buckets, rank),
        matrices_(layout, rank) {
    for (const auto& [unit, size] : sizes_)
      for (const Resource what : {Resource::kParameters, Resource::kGradients, Resource::kStates, Resource::kDirections}) {
        const State state = held_[{what, unit}] = effects_.at_rest(what, unit);
        change({}, unit_bytes({what, unit}, state));
      }
    live(MemoryCategory::kActivations) = (layout.num_microbatches() + left_out) * layout.micro_batch * sequence_bytes();
  }

  // Before the first action: what the rank holds all the time, and the tokens of the step.
  const MemoryArray& live() const { return live_; }

  MemoryPoint step(const Action& action) {
    const Effects& effects = effects_.of(action);
    const MemoryArray before = live_;
    const std::optional<Way> way = way_out(effects, action);
    if (way) end_earlier(*way);
    const int64_t here = live(MemoryCategory::kActivations);
    for (const Touch& touch : effects.touches) apply(touch, action);
    if (const int64_t left = here - live(MemoryCategory::kActivations); way && left > 0) {
      leaving_[*way].push_back(left);
      live(MemoryCategory::kActivations) += left;
    }
    stage(effects, action);
    MemoryPoint point{.within = before, .after = live_};
    for (size_t i = 0; i < kNumMemoryCategories; ++i) point.within[i] = std::max(before[i], live_[i]);
    if (goes_back(action.kind) && action.part < 0) {  // dx joins dy and all that was kept
      int64_t& within = point.within[static_cast<size_t>(MemoryCategory::kActivations)];
      within = before[static_cast<size_t>(MemoryCategory::kActivations)] + (action.layer > 0 ? cost(action.layer - 1).output : 0);
    }
    add(point.within, MemoryCategory::kBuffers, workspace(effects, action));
    return point;
  }

  // InternalError where something is kept for a backward that never came, or gathered and never dropped.
  void check_end() {
    for (const auto& [key, state] : made_)
      LOCKSTEP_CHECK(false, "layer ", std::get<1>(key), " has something of microbatch ", std::get<2>(key), " that nobody took");
    for (const auto& [way, bytes] : leaving_) LOCKSTEP_CHECK(way == kToHost || bytes.empty(), "sends that nobody waited for");
    for (const auto& [of, state] : held_)
      LOCKSTEP_CHECK(unit_bytes(of, state) == unit_bytes(of, effects_.at_rest(of.first, of.second)), "unit ", of.second,
                     " is not left as it was found: state ", state);
    LOCKSTEP_CHECK(staged_.empty(), "gradients that were never reduced");
  }

 private:
  using Made = std::tuple<Resource, int, int>;  // index, microbatch
  using OfUnit = std::pair<Resource, int>;      // its id
  using Way = std::pair<int, bool>;             // rank that it leads to, forward; or kToHost
  static constexpr Way kToHost{-1, false};
  int64_t& live(MemoryCategory category) { return live_[static_cast<size_t>(category)]; }
  const arch::LayerCost& cost(int layer) const { return costs_.at(static_cast<size_t>(layer)); }

  void apply(const Touch& touch, const Action& action) {
    if (touch.what == Resource::kSent) {
      if (touch.how == Access::kConsume) end_sends();
    } else if (by_microbatch(touch.what)) {
      apply_made(touch, action.microbatch);
    } else if (touch.what == Resource::kLosses) {
      const bool middle = action.microbatch == layout_.num_microbatches() / 2;
      if (touch.how == Access::kAdd) live(MemoryCategory::kActivations) += kLoss * (middle ? 1 + left_out_ : 1);
    } else if (touch.index != kEvery) {
      apply_unit({touch.what, touch.index}, touch);
    } else {
      for (const auto& [unit, size] : sizes_) apply_unit({touch.what, unit}, touch);
    }
  }

  void apply_made(const Touch& touch, int microbatch) {
    const Made key{touch.what, touch.index, microbatch};
    if (touch.how == Access::kCreate) {
      LOCKSTEP_CHECK(made_.emplace(key, touch.to).second, "layer ", touch.index, " has not taken what it has of microbatch ", microbatch);
      return change({}, made_bytes(touch.what, touch.index, touch.to));
    }
    const auto found = made_.find(key);
    LOCKSTEP_CHECK(found != made_.end(), "layer ", touch.index, " has nothing of microbatch ", microbatch);
    const State before = found->second;
    if (touch.how == Access::kConsume) {
      change(made_bytes(touch.what, touch.index, before), {});
      made_.erase(found);
    } else {
      found->second = (before & ~touch.from) | touch.to;
      change(made_bytes(touch.what, touch.index, before), made_bytes(touch.what, touch.index, found->second));
    }
  }

  void apply_unit(const OfUnit& of, const Touch& touch) {
    if (touch.from == touch.to) return;
    const auto found = held_.find(of);
    if (found == held_.end()) return;
    const State before = found->second;
    if (touch.index == kEvery && (before & touch.from) != touch.from) return;
    found->second = (before & ~touch.from) | touch.to;
    change(unit_bytes(of, before), unit_bytes(of, found->second));
  }

  void change(const MemoryArray& before, const MemoryArray& behind) {
    for (size_t i = 0; i < kNumMemoryCategories; ++i) live_[i] += behind[i] - before[i];
  }

  MemoryArray unit_bytes(const OfUnit& of, State state) const {
    const auto& [what, unit] = of;
    const Offload& offload = layout_.offload;
    const auto& [whole, part, updated, offloaded] = sizes_.at(unit);
    const arch::ParameterGroup group = layout_.group_of(unit);
    const int64_t element = layout_.element_size(group);
    MemoryArray bytes{};
    if (what == Resource::kParameters) {
      const bool sharded = layout_.sharded_parameters(group);
      if (!offload.parameters || (state & kAway) == 0) add(bytes, MemoryCategory::kParameters, (sharded ? part : whole) * element);
      if (sharded && (state & kShardOnly) == 0) add(bytes, MemoryCategory::kParameters, whole * element);
    } else if (what == Resource::kGradients) {
      const MemoryCategory sums = offload.optimizer ? MemoryCategory::kHost : MemoryCategory::kGradients;
      add(bytes, sums, (layout_.transient_gradients(group) ? part : whole) * kFp32);
      if ((state & kOpen) != 0) add(bytes, MemoryCategory::kGradients, whole * kFp32);
    } else if (what == Resource::kDirections) {
      const MemoryCategory category = offload.optimizer ? MemoryCategory::kHost : MemoryCategory::kBuffers;
      if ((state & kAway) == 0) add(bytes, category, matrices_.most_bytes(unit));
    } else {
      const int64_t values = layout_.precision_of(group) == config::Precision::kBf16 ? 0 : part * kFp32;  // the compute copy in fp32
      if (offload.optimizer && (state & kAway) == 0) add(bytes, MemoryCategory::kHost, offloaded);
      if (!offload.optimizer && layout_.owns_optimizer(rank_)) add(bytes, MemoryCategory::kOptimizer, updated - values);
      if (layout_.pipeline.post_validation) add(bytes, MemoryCategory::kOptimizer, updated);  // to take STEP back
    }
    return bytes;
  }

  MemoryArray made_bytes(Resource what, int index, State state) const {
    MemoryArray bytes{};
    if (what == Resource::kInput) {
      add(bytes, MemoryCategory::kActivations, cost(index - 1).output);
    } else if (what == Resource::kOutputGrad) {
      add(bytes, MemoryCategory::kActivations, cost(index).output);
    } else if (what == Resource::kForwardParts || what == Resource::kBackwardParts) {
      const arch::LayerCost& of = cost(index);  // I holds the same between its parts as B
      const auto& between = (what == Resource::kForwardParts ? of.forward_parts : of.backward_parts).between;
      add(bytes, MemoryCategory::kActivations, between[(state & (kForExperts | kAtExperts)) != 0 ? 0 : 1]);
    } else {
      const bool whole = (state & kIncomplete) == 0 && layout_.recompute_of(index) != arch::Recompute::kNone;
      const int64_t saved = (state & kForWeights) != 0 ? cost(index).held : cost(index).kept + (whole ? cost(index).restored : 0);
      if ((state & kAway) == 0) add(bytes, MemoryCategory::kActivations, saved);
      if ((state & (kAway | kCopied)) != 0) add(bytes, MemoryCategory::kHost, saved);
    }
    return bytes;
  }

  // Where what the action takes off the device goes.
  std::optional<Way> way_out(const Effects& effects, const Action& action) const {
    if (effects.lane == Lane::kCopies && effects.touches.front().what == Resource::kSaved) return kToHost;
    if (effects.lane != Lane::kChannel) return std::nullopt;
    const Transfer transfer = transfer_of(action);
    return transfer.sends ? std::optional(Way{layout_.rank_at(rank_, transfer.neighbour), transfer.forward}) : std::nullopt;
  }

  // The one so many before it has gone by then: inputs leave for the host one by one.
  void end_earlier(const Way& way) {
    std::deque<int64_t>& leaving = leaving_[way];
    if (std::ssize(leaving) < (way == kToHost ? 1 : program_.channel_depth)) return;
    live(MemoryCategory::kActivations) -= leaving.front();
    leaving.pop_front();
  }

  void end_sends() {
    for (auto& [way, bytes] : leaving_) {
      if (way == kToHost) continue;
      live(MemoryCategory::kActivations) -= std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
      bytes.clear();
    }
  }

  // With reduce_precision bf16 the gradients of a bucket lie there once as they go out and once as they come in, until their sum
  // is joined; REDUCE_TIED is counted beside them.
  void stage(const Effects& effects, const Action& action) {
    if (layout_.reduce_precision != config::Precision::kBf16 || !layout_.shares_states() || sums_tied(action.kind)) return;
    for (const int bucket : reducing_.of(effects, action))
      if (const auto found = staged_.extract(bucket)) live(MemoryCategory::kBuffers) -= found.mapped();
    reducing_.join(effects, action);
    constexpr int64_t kOutAndIn = 2 * 2;
    int64_t bytes = 0;
    for (const Touch& touch : effects.touches)
      if (touch.how == Access::kUpdate && (touch.from & kPartOfTokens) != 0 && layout_.shards_of_unit(touch.index) > 1 &&
          layout_.reduce_precision_of(layout_.group_of(touch.index)) == config::Precision::kBf16)
        bytes += kOutAndIn * sizes_.at(touch.index).whole;
    if (bytes == 0) return;
    staged_[action.bucket] = bytes;
    live(MemoryCategory::kBuffers) += bytes;
    reducing_.start(effects, action, action.bucket);
  }

  int64_t part_workspace(const Action& action) const {
    const arch::LayerCost& of = cost(action.layer);
    const bool forward = work_of(action.kind) == Work::kForward;
    const arch::PartCost& parts = forward ? of.forward_parts : adds_to_weights(action.kind) ? of.backward_parts : of.input_parts;
    return parts.workspace[static_cast<size_t>(action.part)];
  }

  // Token ids and targets of one sequence; with nn::TokenPlaces positions, and as int32 of each token its place and the first that it
  // sees, over cp also the places of all ranks' tokens and the first that each of the whole sequence sees.
  int64_t sequence_bytes() const {
    constexpr int64_t kPlace = 4;
    const int64_t tokens = layout_.tokens_here(), ranks = layout_.context_shard().ranks;
    const int64_t ids = 2 * tokens * kTokenId;
    if (!layout_.has_places()) return ids;
    const int64_t of_ranks = ranks == 1 ? 0 : kPlace * (ranks * tokens + layout_.seq_len);
    return ids + tokens * (kTokenId + 2 * kPlace) + of_ranks;
  }

  int64_t workspace(const Effects& effects, const Action& action) const {
    if (action.part >= 0) return part_workspace(action);
    switch (work_of(action.kind)) {
      case Work::kForward:
        return cost(action.layer).forward_workspace;
      case Work::kAgain:
        return cost(action.layer).recompute_workspace;
      case Work::kInputAndWeight:
        return cost(action.layer).backward_workspace;
      case Work::kInput:
        return cost(action.layer).input_workspace;
      case Work::kWeight:
        return cost(action.layer).weight_workspace;
      case Work::kNone:
        break;
    }
    if (sums_partial(action.kind)) return sent_copy(action);
    int64_t bytes = 0;
    for (const Touch& touch : effects.touches) {
      if (touch.what == Resource::kDirections && touch.how == Access::kUpdate) bytes = iteration_bytes(touch.index);
      if (touch.what == Resource::kStates && effects.lane == Lane::kCompute) bytes = whole_step_bytes(touch.index);
    }
    return layout_.offload.optimizer ? 0 : bytes;
  }

  // Of the largest matrix that this rank has whole: the scaled gradient and the direction in fp32, two of the matrix and two squares
  // in the type of the iteration. Element by element nothing is needed.
  int64_t whole_step_bytes(int unit) const {
    int64_t most = 0;
    for (const arch::ParamSpec& spec : table_) {
      const bool whole = spec.update.optimizer->whole_matrix && !arch::is_scattered_matrix(spec, layout_.shards(spec.group));
      if (!whole || (unit != kEvery && spec.unit != unit)) continue;
      const int64_t shorter = std::min(spec.shape[0], spec.shape[1]);
      most = std::max(most, 2 * kFp32 * spec.numel() + 2 * matrices_.element_size() * (spec.numel() + shorter * shorter));
    }
    return most;
  }

  // Of the largest matrix of the unit, on its shorter side: two squares and one more of itself.
  int64_t iteration_bytes(int unit) const {
    int64_t most = 0;
    for (const ScatteredMatrix& matrix : matrices_.of(unit)) {
      const int64_t shorter = std::min(matrix.rows, matrix.columns), longer = std::max(matrix.rows, matrix.columns);
      most = std::max(most, 2 * shorter * shorter + shorter * longer);
    }
    return most * matrices_.element_size();
  }

  // Gradients that lie scattered travel together, in a copy.
  int64_t sent_copy(const Action& action) const {
    int64_t largest = 0;
    for (const PlannedCall& planned : planned_calls(layout_, program_, rank_, action))
      largest = std::max(largest, planned.bytes());
    return largest;
  }

  const Layout& layout_;
  const Program& program_;
  const int rank_;
  const int64_t left_out_;
  const std::vector<arch::ParamSpec> table_;
  const std::map<int, UnitSize> sizes_;
  const std::vector<arch::LayerCost> costs_;
  EffectTable effects_;
  MatrixPlan matrices_;
  MemoryArray live_{};
  std::map<Made, State> made_;    // by microbatches: there now
  std::map<OfUnit, State> held_;  // parameters, gradients and states
  std::map<Way, std::deque<int64_t>> leaving_;  // what has left and is still on the device: the last ones of each
  std::map<int, int64_t> staged_;  // bucket -> bytes of gradients on their way
  Pending<int> reducing_;          // the same buckets
};

}  // namespace

MemoryTimeline memory_timeline(const Layout& layout, const Program& program, int rank, int64_t left_out) {
  MemoryWalk walk(layout, program, rank, left_out);
  MemoryTimeline timeline{.before = walk.live(), .points = {}};
  timeline.points.reserve(program.list(rank).size());
  for (const Action& action : program.list(rank)) timeline.points.push_back(walk.step(action));
  walk.check_end();
  return timeline;
}

}  // namespace lockstep::program

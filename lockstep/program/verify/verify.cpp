#include "lockstep/program/verify/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/names.h"
#include "lockstep/program/passes/post_validation.h"
#include "lockstep/program/rank_class.h"
#include "lockstep/program/verify/rules.h"

namespace lockstep::program {
namespace {

class Verifier {
 public:
  Verifier(const Program& program, const Layout& layout, Pass after)
      : program_(program),
        layout_(layout),
        after_(after),
        microbatches_(layout.num_microbatches()),
        model_layers_(layout.num_layers()),
        places_(after == Pass::kSchedule ? layout.pipeline.stages() : model_layers_),
        sharded_(layout.shards() > 1 || layout.transient_gradients()) {}

  std::vector<std::string> run() {
    if (program_.world_size() != layout_.mesh.world_size()) {
      problem("ranks", cat(program_.world_size(), " lists for ", layout_.mesh.world_size(), " ranks"));
      return problems_;
    }
    for (int coordinate = 0; coordinate < layout_.pipeline.ranks; ++coordinate) {
      tables_.push_back(layout_.param_table(some_rank(coordinate)));
      if (after_ >= Pass::kReduceGradients) check_buckets(coordinate);
    }
    for (const Bucket& bucket : program_.buckets)
      if (bucket.pipeline < 0 || bucket.pipeline >= layout_.pipeline.ranks) {
        problem("ranks", cat("a bucket of coordinate ", bucket.pipeline, " on pp"));
        return problems_;
      }
    for (const int rank : representatives()) {
      rank_ = rank;
      if (!indices_exist()) {
        indices_exist_ = false;
        continue;
      }
      take(check_passes(program_, layout_, rank_, after_));
      if (after_ >= Pass::kExpandLayers) take(check_recomputed(program_, layout_, rank_));
      if (after_ >= Pass::kShardParameters) take(check_gathered(program_, layout_, rank_));
      if (after_ >= Pass::kReduceGradients)
        take(sharded_ ? check_sharded_gradients(program_, layout_, rank_) : check_reductions(program_, layout_, rank_));
      if (after_ >= Pass::kUpdate) take(check_update(program_, layout_, rank_, after_));
      if (after_ >= Pass::kOffload) take(check_offloaded(program_, layout_, rank_));
    }
    if (problems_.empty()) take(check_pipelines(program_, layout_, after_));
    if (problems_.empty() && after_ >= Pass::kPostValidation) take(check_validation(program_, layout_));
    if (indices_exist_) check_same_communication();
    if (problems_.empty() && after_ >= Pass::kOffload)
      for (const int rank : representatives()) take(check_life(program_, layout_, rank));
    return problems_;
  }

 private:
  const std::vector<Action>& actions() const { return program_.list(rank_); }
  void problem(const char* rule, std::string what) { problems_.push_back(cat("[", rule, "] ", what)); }
  void take(const std::vector<std::string>& problems) {
    problems_.insert(problems_.end(), problems.begin(), problems.end());
  }
  void here(const char* rule, const std::string& what) { problem(rule, cat("rank ", rank_, ": ", what)); }

  // The first rank of every class that runs a list. The rules of a list read layers, units and their sizes, ties and who owns
  // the optimizer; all ranks of tp agree on these (passes.h), so their classes are one.
  std::vector<int> representatives() const {
    std::set<RankClass> known;
    std::vector<int> ranks;
    RankClass before{.list = -1};
    for (int rank = 0; rank < program_.world_size(); ++rank) {
      RankClass of_rank = class_of(program_, layout_, rank);
      of_rank.tp = 0;
      if (of_rank != before && known.insert(of_rank).second) ranks.push_back(rank);
      before = of_rank;
    }
    return ranks;
  }

  int some_rank(int coordinate) const {
    mesh::PerAxis at = layout_.mesh.coordinates(0);
    at[mesh::Axis::kPp] = coordinate;
    return layout_.mesh.rank(at);
  }
  bool exists(const Action& action) const {
    const bool by_stage = after_ == Pass::kSchedule || is_transfer(action.kind);
    const int place = by_stage ? action.stage : action.layer;
    const int places = by_stage ? layout_.pipeline.stages() : places_;
    return place >= 0 && place < places && action.microbatch >= 0 && action.microbatch < microbatches_;
  }
  bool owns_parameters(int unit) const {
    const std::vector<arch::ParamSpec>& table = tables_[static_cast<size_t>(layout_.pipeline_rank(rank_))];
    return std::any_of(table.begin(), table.end(), [&](const arch::ParamSpec& spec) { return spec.layer == unit; });
  }

  // False where an index does not exist.
  bool indices_exist() {
    const size_t problems_before = problems_.size();
    for (int i = 0; i < static_cast<int>(actions().size()); ++i) {
      const Action& action = actions()[static_cast<size_t>(i)];
      const int place = after_ == Pass::kSchedule || is_transfer(action.kind) ? action.stage : action.layer;
      const auto what = [&] { return cat("action ", i, ": ", action_name(action.kind)); };
      const bool has_unit = gathers(action.kind) || drops_gathered(action.kind);
      const bool has_bucket = of_bucket(action.kind);
      if ((computes(action.kind) || is_transfer(action.kind)) && !exists(action)) {
        here("ranks", cat(what(), " of place ", place, ", microbatch ", action.microbatch));
        continue;
      }
      if (has_bucket && (action.bucket < 0 || action.bucket >= static_cast<int>(program_.buckets.size()))) {
        here("ranks", cat(what(), " of bucket ", action.bucket));
        continue;
      }
      if (is_move(action.kind) && (action.moved == Moved::kActivation ? !exists(action) : !owns_parameters(action.unit))) {
        here("ranks", cat(what(), " of unit ", action.unit, ", layer ", action.layer, ", microbatch ", action.microbatch));
        continue;
      }
      if ((has_unit && action.unit < 0) || action.unit >= model_layers_) here("ranks", cat(what(), " of unit ", action.unit));
    }
    return problems_.size() == problems_before;
  }

  void check_buckets(int coordinate) {
    std::map<int, int> times;  // layer -> buckets that hold it
    const arch::FlatLayout flat = layout_.flat_layout(some_rank(coordinate));
    for (const Bucket& bucket : program_.buckets) {
      if (bucket.pipeline != coordinate) continue;
      int64_t begin = flat.numel, end = 0, numel = 0;
      for (const arch::FlatUnit& unit : flat.units) {
        if (std::count(bucket.layers.begin(), bucket.layers.end(), unit.layer) == 0) continue;
        times[unit.layer] += 1;
        begin = std::min(begin, unit.begin);
        end = std::max(end, unit.end);
        numel += unit.end - unit.begin;
      }
      if (layout_.transient_gradients() && bucket.layers.size() != 1)
        problem("buckets", cat(bucket.layers.size(), " units in a bucket of gradients that are dropped unit by unit"));
      if (bucket.begin != begin || bucket.end != end || bucket.numel() != numel) {
        problem("buckets", cat("elements ", bucket.begin, " to ", bucket.end, ", its units are ", begin, " to ", end));
      }
    }
    for (const arch::FlatUnit& unit : flat.units) {
      if (times[unit.layer] != 1) {
        problem("buckets", cat(layer_label(unit.layer, model_layers_), " lies in ", times[unit.layer], " buckets"));
      }
    }
  }

  // Sends and receives of a group match if every member makes the same calls in the same order: lists are compared, not
  // ranks, each pair that stands in one group once.
  void check_same_communication() {
    struct Along {
      mesh::Axis axis;
      int stride;  // between neighbours of a group
      std::set<std::pair<size_t, size_t>> compared{};
    };
    std::vector<Along> groups;
    for (const mesh::Axis axis : {mesh::Axis::kDpShard, mesh::Axis::kDpReplicate, mesh::Axis::kTp})
      if (layout_.mesh.degree(axis) > 1) groups.push_back({.axis = axis, .stride = stride_of(axis)});
    for (int rank = 0; rank < layout_.mesh.world_size(); ++rank) {
      const mesh::PerAxis at = layout_.mesh.coordinates(rank);
      for (Along& group : groups) {
        const int first = rank - at[group.axis] * group.stride;
        const std::pair lists(program_.list_index(first), program_.list_index(rank));
        if (lists.first != lists.second && group.compared.insert(lists).second) compare(first, rank, group.axis);
      }
    }
  }

  int stride_of(mesh::Axis axis) const {
    mesh::PerAxis at = layout_.mesh.coordinates(0);
    at[axis] = 1;
    return layout_.mesh.rank(at);
  }

  void compare(int first, int rank, mesh::Axis axis) {
    if (program_.same_list(first, rank)) return;
    // Layers communicate too over tp: the whole list counts.
    if (axis == mesh::Axis::kTp)
      problem("deadlock", cat("ranks ", first, " and ", rank, " of one tp group do not run the same list"));
    else if (data_calls(first) != data_calls(rank))
      problem("deadlock", cat("ranks ", first, " and ", rank, " of one ", mesh::axis_name(axis),
                              " group do not communicate in the same order"));
  }

  using Call = std::tuple<ActionKind, int, int, int>;
  std::vector<Call> data_calls(int rank) const {
    std::vector<Call> calls;
    EffectTable effects(layout_, program_.buckets, rank);
    for (const Action& action : program_.list(rank)) {
      if (computes(action.kind)) continue;
      const Effects& of = effects.of(action);
      // Servers and workers differ in what they sum inside of a model group.
      const auto in_model_group = [](const Touch& touch) { return (touch.from & (kPartOfTp | kPartOfStages)) != 0; };
      if (of.collective && std::ranges::none_of(of.touches, in_model_group))
        calls.emplace_back(action.kind, action.bucket, action.unit, action.microbatch);
    }
    return calls;
  }

  const Program& program_;
  const Layout& layout_;
  const Pass after_;
  const int64_t microbatches_;
  const int model_layers_;
  const int places_;  // of an action: the stages before expand_layers, then the layers
  const bool sharded_;  // gradients
  std::vector<std::vector<arch::ParamSpec>> tables_;  // by coordinate on pp
  int rank_ = 0;
  bool indices_exist_ = true;  // of all actions
  std::vector<std::string> problems_;
};

}  // namespace

std::string_view pass_name(Pass pass) {
  switch (pass) {
    case Pass::kSchedule:
      return "schedule";
    case Pass::kExpandLayers:
      return "expand_layers";
    case Pass::kTransferActivations:
      return "transfer_activations";
    case Pass::kShardParameters:
      return "shard_parameters";
    case Pass::kReduceGradients:
      return "reduce_gradients";
    case Pass::kUpdate:
      return "update";
    case Pass::kPostValidation:
      return "validate_in_next_step";
    case Pass::kOffload:
      return "offload";
  }
  throw InternalError("no such pass");
}

std::vector<std::string> verify(const Program& program, const Layout& layout, Pass after) {
  return Verifier(program, layout, after).run();
}

}  // namespace lockstep::program

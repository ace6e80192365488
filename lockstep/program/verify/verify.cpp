#include "lockstep/program/verify/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/passes/passes.h"
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
        model_layers_(layout.num_layers()) {}

  std::vector<std::string> run() {
    if (program_.world_size() != layout_.mesh.world_size()) {
      problem("ranks", cat(program_.world_size(), " lists for ", layout_.mesh.world_size(), " ranks"));
      return problems_;
    }
    for (int coordinate = 0; coordinate < layout_.pipeline.ranks; ++coordinate) {
      tables_.push_back(layout_.param_table(coordinate * layout_.pipelines()));
      if (after_ >= Pass::kReduceGradients) check_buckets(coordinate);
    }
    for (const Bucket& bucket : program_.buckets)
      if (bucket.pipeline < 0 || bucket.pipeline >= layout_.pipeline.ranks) {
        problem("ranks", cat("a bucket of coordinate ", bucket.pipeline, " on pp"));
        return problems_;
      }
    // Of every row of classes the first. The rules of a list read layers, units and their sizes, ties and who owns the optimizer;
    // all ranks of tp agree on these (passes.h).
    const std::vector<int> ranks = RankClasses(program_, layout_).first_ranks();
    for (const int rank : ranks) {
      rank_ = rank;
      if (!indices_exist()) {
        indices_exist_ = false;
        continue;
      }
      take(check_passes(program_, layout_, rank_, after_));
      check_sums();
    }
    if (problems_.empty()) take(check_pipelines(program_, layout_, after_));
    if (problems_.empty() && after_ >= Pass::kPostValidation) take(check_validation(program_, layout_));
    if (indices_exist_) check_same_communication();
    if (indices_exist_ && after_ >= Pass::kOffload)
      for (const int rank : ranks) take(check_life(program_, layout_, rank));
    return std::move(problems_);
  }

 private:
  const std::vector<Action>& actions() const { return program_.list(rank_); }
  void problem(const char* rule, std::string what) { problems_.push_back(cat("[", rule, "] ", what)); }
  void take(const std::vector<std::string>& problems) {
    problems_.insert(problems_.end(), problems.begin(), problems.end());
  }
  std::string text(const Action& action) const { return action_text(action, program_.buckets, model_layers_); }
  void here(const char* rule, const std::string& what) { problem(rule, cat("rank ", rank_, ": ", what)); }

  bool by_stage(const Action& action) const { return after_ == Pass::kSchedule || is_transfer(action.kind); }
  int place(const Action& action) const { return by_stage(action) ? action.stage : action.layer; }
  bool exists(const Action& action) const {
    const int at = place(action), places = by_stage(action) ? layout_.pipeline.stages() : model_layers_;
    return at >= 0 && at < places && action.microbatch >= 0 && action.microbatch < microbatches_;
  }
  // Parts and what moves between them are of blocks whose experts lie on several ranks.
  bool part_exists(const Action& action) const {
    if (exchanges(action.kind)) return action.part < 0 && layout_.divisible(action.layer);
    if (action.part < 0) return true;
    const bool in_parts = work_of(action.kind) == Work::kForward || goes_back(action.kind);
    return in_parts && action.part < kParts && layout_.divisible(action.layer);
  }
  bool leaves_rank(const Action& transfer) const {
    const Pipeline& pipeline = layout_.pipeline;
    const int coordinate = layout_.pipeline_rank(rank_), neighbour = transfer_of(transfer).neighbour;
    const bool exists = neighbour >= 0 && neighbour < pipeline.stages();
    return exists && pipeline.rank_of(transfer.stage) == coordinate && pipeline.rank_of(neighbour) != coordinate;
  }
  bool owns_parameters(int unit) const {
    const std::vector<arch::ParamSpec>& table = tables_[static_cast<size_t>(layout_.pipeline_rank(rank_))];
    return std::any_of(table.begin(), table.end(), [&](const arch::ParamSpec& spec) { return spec.unit == unit; });
  }

  // False where an index does not exist.
  bool indices_exist() {
    const size_t problems_before = problems_.size();
    for (int i = 0; i < static_cast<int>(actions().size()); ++i) {
      const Action& action = actions()[static_cast<size_t>(i)];
      const auto what = [&] { return cat("action ", i, ": ", action_name(action.kind)); };
      const bool has_unit = gathers(action.kind) || drops_gathered(action.kind);
      if ((computes(action.kind) || exchanges(action.kind) || is_transfer(action.kind)) && !exists(action))
        here("ranks", cat(what(), " of place ", place(action), ", microbatch ", action.microbatch));
      else if (!part_exists(action))
        here("ranks", cat(what(), " of place ", place(action), ", which has no part ", action.part));
      else if (is_transfer(action.kind) && !leaves_rank(action))
        here("match", cat(text(action), " is not between a stage of this rank and one of another"));
      else if (of_bucket(action.kind) && (action.bucket < 0 || action.bucket >= static_cast<int>(program_.buckets.size())))
        here("ranks", cat(what(), " of bucket ", action.bucket));
      else if (is_move(action.kind) && (action.moved == Moved::kActivation ? !exists(action) : !owns_parameters(action.unit)))
        here("ranks", cat(what(), " of unit ", action.unit, ", layer ", action.layer, ", microbatch ", action.microbatch));
      else if ((has_unit && action.unit < 0) || action.unit >= layout_.num_units())
        here("ranks", cat(what(), " of unit ", action.unit));
    }
    return problems_.size() == problems_before;
  }

  void check_buckets(int coordinate) {
    std::map<int, int> times;  // unit -> buckets that hold it
    const arch::FlatLayout flat = layout_.flat_layout(coordinate * layout_.pipelines());
    for (const Bucket& bucket : program_.buckets) {
      if (bucket.pipeline != coordinate) continue;
      int64_t begin = flat.numel, end = 0, numel = 0;
      for (const arch::FlatUnit& unit : flat.units) {
        if (std::count(bucket.units.begin(), bucket.units.end(), unit.id) == 0) continue;
        times[unit.id] += 1;
        if (layout_.group_of(bucket.units.front()) != unit.group)
          problem("buckets", cat(layer_label(unit.id, model_layers_), " lies in a bucket of another group"));
        begin = std::min(begin, unit.begin);
        end = std::max(end, unit.end);
        numel += unit.end - unit.begin;
      }
      if (layout_.transient_gradients(group_of(layout_, bucket)) && bucket.units.size() != 1)
        problem("buckets", cat(bucket.units.size(), " units in a bucket of gradients that are dropped unit by unit"));
      if (bucket.begin != begin || bucket.end != end || bucket.numel() != numel) {
        problem("buckets", cat("elements ", bucket.begin, " to ", bucket.end, ", its units are ", begin, " to ", end));
      }
    }
    for (const arch::FlatUnit& unit : flat.units) {
      if (times[unit.id] != 1) {
        problem("buckets", cat(layer_label(unit.id, model_layers_), " lies in ", times[unit.id], " buckets"));
      }
    }
  }

  // Across ranks of pp the sums of a step have one order. LOSS says whether gradients are finite, and brings the tokens for NORM.
  void check_sums() {
    bool loss = false;
    for (const Action& action : actions()) {
      loss = loss || sums_losses(action.kind);
      if (loss && computes(action.kind)) return here("update", cat(text(action), " after LOSS"));
      if (!loss && makes_norm(action.kind)) return here("update", "NORM before LOSS, which brings the number of tokens");
      if (reduces(action.kind) && layout_.server_mode() != (action.kind == ActionKind::kPush))
        return here("reduce", cat(text(action), " is not how this layout reduces"));
    }
  }

  // Sends and receives of a group match if every member makes the same calls in the same order: lists are compared, not
  // ranks, each pair that stands in one group once.
  void check_same_communication() {
    std::vector<Compared> views;
    const auto add = [&](const char* name, const mesh::View& view, bool in_layers) {
      if (layout_.mesh.degree(view) > 1) views.push_back({.name = name, .view = view, .in_layers = in_layers});
    };
    add("dp_shard", mesh::Axis::kDpShard, false);
    add("dp_replicate", mesh::Axis::kDpReplicate, false);
    add("cp", mesh::Axis::kCp, true);
    add("tp", mesh::Axis::kTp, true);
    if (layout_.model.has_experts()) add("ep", layout_.expert_ranks(), true);
    const int of_stage = layout_.pipelines();
    for (int begin = 0; begin < layout_.mesh.world_size(); begin += of_stage) {
      const auto first = program_.list_of.begin() + begin, last = first + of_stage;
      if (std::all_of(first, last, [&](int32_t list) { return list == *first; })) continue;
      for (int rank = begin; rank < begin + of_stage; ++rank)
        for (const Compared& view : views) compare_with_first(rank, view);
    }
  }

  // Ranks whose lists are held against each other: what they communicate between layers, or, where layers do, all.
  struct Compared {
    const char* name = "";
    mesh::View view{};
    bool in_layers = false;
  };

  void compare_with_first(int rank, const Compared& group) {
    const int first = layout_.mesh.member(rank, group.view, 0);
    const size_t list = program_.list_index(rank), of_first = program_.list_index(first);
    if (list == of_first || !compared_.emplace(group.name, of_first, list).second || program_.same_list(first, rank)) return;
    if (group.in_layers)
      problem("deadlock", cat("ranks ", first, " and ", rank, " of one ", group.name, " group do not run the same list"));
    else if (const std::vector<Action> ours = data_calls(first), theirs = data_calls(rank); ours != theirs) {
      const auto [one, other] = std::ranges::mismatch(ours, theirs);
      problem("deadlock", cat("ranks ", first, " and ", rank, " of one ", group.name, " group do not communicate in the same order: ",
                              one == ours.end() ? "nothing" : text(*one), " there, ", other == theirs.end() ? "nothing" : text(*other), " here"));
    }
  }

  std::vector<Action> data_calls(int rank) const {
    std::vector<Action> calls;
    EffectTable effects(layout_, program_.buckets, rank);
    for (const Action& action : program_.list(rank)) {
      if (computes(action.kind)) continue;
      const Effects& of = effects.of(action);
      // Servers and workers differ in what they sum inside of a model group.
      const auto in_model_group = [](const Touch& touch) { return (touch.from & (kPartOfTp | kPartOfStages)) != 0; };
      // Pieces of matrices go from rank to rank, in the order of the lists too.
      const bool in_data_group = of.collective || (layout_.shares_states() && moves_matrices(action.kind));
      if (in_data_group && std::ranges::none_of(of.touches, in_model_group)) calls.push_back(action);
    }
    return calls;
  }

  const Program& program_;
  const Layout& layout_;
  const Pass after_;
  const int64_t microbatches_;
  const int model_layers_;
  std::vector<std::vector<arch::ParamSpec>> tables_;  // by coordinate on pp
  int rank_ = 0;
  bool indices_exist_ = true;  // of all actions
  std::set<std::tuple<std::string, size_t, size_t>> compared_;  // two lists whose ranks a group joins, by its name
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> verify(const Program& program, const Layout& layout, Pass after) {
  return Verifier(program, layout, after).run();
}

// A sound result says that every pass was; only what is not is made again, to name the pass that broke it.
Program build_program(const Layout& layout) {
  Program program = make_program(layout);
  if (verify(program, layout).empty()) return program;
  const auto require_sound = [&](const Program& made, Pass pass, const char* name) {
    const std::vector<std::string> problems = verify(made, layout, pass);
    LOCKSTEP_CHECK(problems.empty(), "after pass ", name, ":\n  ", join(problems, "\n  "));
  };
  Program again = schedule(layout);
  require_sound(again, Pass::kSchedule, "schedule");
  for (const PassStep& step : pass_steps()) {
    again = step.make(std::move(again), layout);
    require_sound(again, step.pass, step.name);
  }
  return again;
}

}  // namespace lockstep::program

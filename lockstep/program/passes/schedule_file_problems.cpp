#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/program/passes/pipeline_walk.h"
#include "lockstep/program/passes/schedule_file.h"

namespace lockstep::program {
namespace {

constexpr const char* kKey = "parallel.schedule";

std::string text(const GridCell& cell) { return cat("row ", cell.row, ", column ", cell.column); }
std::string numbers(const std::vector<int>& values) {
  std::vector<std::string> texts;
  for (const int value : values) texts.push_back(cat(value));
  return join(texts, ", ");
}

class GridCheck {
 public:
  GridCheck(const Grid& grid, const ScheduleInput& input)
      : grid_(grid),
        input_(input),
        pipeline_{.kind = ScheduleKind::kFile,
                  .ranks = input.ranks,
                  .virtual_stages = input.virtual_stages,
                  .grid_in_v = grid.in_v()} {}

  std::vector<config::LayoutProblem> run() {
    several(grid_.problems, "write cells as 0F0: stage, one of F, B, I and W, microbatch; nothing for an idle step");
    if (grid_.problems.empty() && check_sizes() && check_places() && check_actions()) check_ends();
    return std::move(problems_);
  }

 private:
  enum Part { kF, kI, kW };
  static constexpr std::array<const char*, 3> kNames = {"F", "B or I", "B or W"};
  struct Found {
    int times = 0;
    size_t at = 0;  // in the list of its rank
    GridCell cell{};
  };
  std::array<Found, 3>& of(int stage, int microbatch) {
    return all_[static_cast<size_t>(stage) * static_cast<size_t>(grid_.microbatches) + static_cast<size_t>(microbatch)];
  }

  // What is to be written in the file; and values of the key that suit the file as it is.
  void problem(const char* key, std::string what, std::string in_file, const std::vector<std::string>& values = {}) {
    problems_.push_back({.key = key, .what = std::move(what), .ways = config::values_of(key, values), .elsewhere = std::move(in_file)});
  }
  // As many as can be read at once.
  void several(const std::vector<std::string>& what, const char* in_file) {
    constexpr size_t kMost = 8;
    for (size_t i = 0; i < std::min(kMost, what.size()); ++i) problem(kKey, cat("grid: ", what[i]), in_file);
    if (what.size() > kMost) problem(kKey, cat("grid: and ", what.size() - kMost, " more"), in_file);
  }

  bool check_sizes() {
    const int rows = static_cast<int>(grid_.ranks.size()), stages = pipeline_.stages();
    if (rows != input_.ranks)
      problem("parallel.pp", cat("pp(", input_.ranks, "), but the grid has ", rows, rows == 1 ? " row" : " rows"),
              "write a grid with a row for every rank", rows > 1 ? std::vector{cat(rows)} : std::vector<std::string>{});
    if (rows == input_.ranks && grid_.stages != stages) {
      const bool whole = grid_.stages > 0 && grid_.stages % rows == 0;
      problem("parallel.virtual_stages",
              cat("pp(", rows, ") x virtual_stages(", input_.virtual_stages, ") = ", stages, ", but the grid has stages 0 to ",
                  grid_.stages - 1),
              whole ? "" : cat("write a grid with a multiple of ", rows, " stages: as many on every rank"),
              whole ? std::vector{cat(grid_.stages / rows)} : std::vector<std::string>{});
    }
    if (grid_.microbatches != input_.microbatches) {
      const bool some = grid_.microbatches > 0;
      problem("train.global_batch",
              cat(input_.microbatches, input_.microbatches == 1 ? " microbatch" : " microbatches", ", but the grid has 0 to ",
                  grid_.microbatches - 1),
              some ? "" : "write a grid with some", some ? std::vector{cat(grid_.microbatches * input_.sequences)} : std::vector<std::string>{});
    }
    return problems_.empty();
  }

  // Which rank has which stage.
  bool check_places() {
    std::vector<std::set<int>> rows(static_cast<size_t>(grid_.stages));
    for (size_t row = 0; row < grid_.ranks.size(); ++row)
      for (const Action& action : grid_.ranks[row]) rows[static_cast<size_t>(action.stage)].insert(static_cast<int>(row));
    std::vector<std::string> wrong;
    std::vector<int> found, loop, v;
    const Pipeline turned{.kind = ScheduleKind::kZbV, .ranks = input_.ranks, .virtual_stages = input_.virtual_stages};
    for (int stage = 0; stage < grid_.stages; ++stage) {
      const std::set<int>& of = rows[static_cast<size_t>(stage)];
      if (of.size() > 1) wrong.push_back(cat("stage ", stage, " is on the rows of ranks ", numbers({of.begin(), of.end()})));
      if (of.empty()) wrong.push_back(cat("stage ", stage, " is on no row"));
      found.push_back(of.empty() ? -1 : *of.begin());
      loop.push_back(stage % input_.ranks);
      v.push_back(turned.rank_of(stage));
    }
    if (wrong.empty() && found != loop && found != v)
      wrong.push_back(cat("stages 0 to ", grid_.stages - 1, " are on ranks ", numbers(found), "; ranks run them in a loop, ",
                          numbers(loop), loop == v ? "" : cat(", or in a V, ", numbers(v))));
    several(wrong, "give every stage to the rank that has it in a loop, or for all of them in a V");
    return wrong.empty();
  }

  // Each F and backward once, and in an order in which a rank alone can run them.
  bool check_actions() {
    all_.resize(static_cast<size_t>(grid_.stages) * static_cast<size_t>(grid_.microbatches));
    for (size_t row = 0; row < grid_.ranks.size(); ++row)
      for (size_t i = 0; i < grid_.ranks[row].size(); ++i) {
        const Action& action = grid_.ranks[row][i];
        const Found here{.at = i, .cell = grid_.cells[row][i]};
        if (action.kind == ActionKind::kForward) add(kF, action, here);
        if (goes_back(action.kind)) add(kI, action, here);
        if (adds_to_weights(action.kind)) add(kW, action, here);
      }
    for (int stage = 0; stage < grid_.stages; ++stage)
      for (int m = 0; m < grid_.microbatches; ++m) check_microbatch(stage, m);
    several(wrong_, "every stage runs one F and one B (or I, then W) of every microbatch");
    return wrong_.empty();
  }

  void add(Part part, const Action& action, Found here) {
    Found& found = of(action.stage, action.microbatch)[part];
    if (found.times > 0)
      wrong_.push_back(cat(text(here.cell), ": another ", kNames[part], " of stage ", action.stage, " m", action.microbatch,
                           " beside that in column ", found.cell.column));
    here.times = found.times + 1;
    found = here;
  }

  void check_microbatch(int stage, int m) {
    const std::array<Found, 3>& now = of(stage, m);
    const auto name = [&](Part part) { return cat(kNames[part], " of stage ", stage, " m", m); };
    for (const Part part : {kF, kI, kW})
      if (now[part].times == 0) wrong_.push_back(cat("no ", name(part)));
    for (const Part late : {kI, kW}) {
      const Part early = late == kI ? kF : kI;
      if (now[early].times == 1 && now[late].times == 1 && now[late].at < now[early].at)
        wrong_.push_back(cat(text(now[late].cell), ": ", name(late), " before its ", kNames[early]));
    }
  }

  void check_ends() {
    WalkInput walk{.pipeline = pipeline_, .microbatches = input_.microbatches};
    for (const std::vector<Action>& row : grid_.ranks) walk.lists.push_back(&row);
    const std::vector<std::string> circle = find_deadlock(walk);
    if (!circle.empty())
      problem(kKey, cat("the grid deadlocks: ", join(circle, "; ")), "change the order of one of these ranks");
  }

  const Grid& grid_;
  const ScheduleInput& input_;
  const Pipeline pipeline_;
  std::vector<std::array<Found, 3>> all_;  // by stage and microbatch
  std::vector<std::string> wrong_;
  std::vector<config::LayoutProblem> problems_;
};

}  // namespace

std::vector<config::LayoutProblem> grid_problems(const Grid& grid, const ScheduleInput& input) {
  return GridCheck(grid, input).run();
}

}  // namespace lockstep::program

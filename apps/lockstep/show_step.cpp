#include "apps/lockstep/show_step.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/bubble.h"
#include "lockstep/plan/cost_file.h"
#include "lockstep/plan/drawing.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::apps {
namespace {

using program::Layout;
using program::Program;

constexpr std::array<const char*, 4> kDrawings = {"grid", "svg", "html", "trace"};
constexpr std::array<const char*, 2> kTimes = {"costs", "measured"};
constexpr int kColumns = 120;
constexpr int kGridColumns = 60;  // of a step in seconds, about

struct Use {
  const char* flag;
  std::vector<std::string> pages;
};
const std::vector<Use>& uses() {
  static const std::vector<Use> table = {{"draw", {"program"}},
                                         {"full", {"program", "traffic"}},
                                         {"timeline", {"memory"}},
                                         {"ranks-per-node", {"layout"}},
                                         {"documents", {"context"}},
                                         {"sequences", {"context"}},
                                         {"flops", {"context"}},
                                         {"bandwidth", {"context"}},
                                         {"rank", {"program", "layout", "block", "memory", "traffic"}}};
  return table;
}

[[noreturn]] void refuse(const std::string& what, const std::string& way_out) { reject("LS1004", what, way_out); }

// The last step traced in --measured FOLDER, and what all of them say together.
std::pair<plan::Measured, plan::Typical> measured_steps(const CommandLine& command_line, const Layout& layout, const Program& program) {
  const std::filesystem::path folder = command_line.value("measured");
  const std::vector<int64_t> steps = plan::traced_steps(folder);
  if (steps.empty())
    refuse(cat("--measured ", folder.string(), ": no traced step in it"), "RUN/trace of a run that had [trace] steps");
  plan::Measured last;
  std::vector<plan::ActionTimes> times;
  for (const int64_t step : steps) {
    const std::vector<plan::StepTrace> traces = plan::read_step(folder, step, program);
    last = {.step = step, .spans = plan::measured_spans(program, layout, traces), .overhead = plan::overhead(traces), .calls = plan::measured_calls(traces)};
    times.push_back(plan::measured_times(program, layout, last.spans));
  }
  return {std::move(last), plan::Typical{.steps = steps, .simulation = plan::simulate(program, layout, plan::typical_times(program, times))}};
}

plan::ActionTimes times_of(const CommandLine& command_line, const Layout& layout, const Program& program,
                           const std::optional<plan::Measured>& measured) {
  if (command_line.has("costs")) {
    const std::string file = command_line.value("costs");
    return plan::cost_times(program, layout, plan::parse_costs(read_file(file), file, layout));
  }
  if (!measured) return plan::unit_times(program, layout);
  plan::ActionTimes times = plan::measured_times(program, layout, measured->spans);
  times.source = cat("those of the actions of step ", measured->step);
  return times;
}

std::string summary(const Layout& layout, const plan::Simulation& simulation, const plan::ActionTimes& times) {
  const plan::Utilisation& use = simulation.use;
  std::string text = cat("step ", plan::time_text(use.step_seconds, times.in_units));
  if (layout.pipeline.post_validation) text += cat(", one behind the other ", plan::time_text(simulation.period, times.in_units));
  text += cat(", bubble ", plan::percent_text(use.bubble()));
  if (const auto formula = plan::bubble_share(program::schedule_of(layout)))
    text += cat(" (", formula->formula, " of equal stages: ", plan::percent_text(formula->value), ")");
  return cat(text, ", idle ", plan::percent_text(use.idle()), "; times: ", times.source, "\n");
}

// Equal stages are drawn stage by stage, a column per unit.
std::string grid(const Layout& layout, const Program& program, const plan::Simulation& simulation,
                 const plan::ActionTimes& times) {
  const plan::GridOptions options{.unit = 1, .width = kColumns, .ranks = program::stage_ranks(layout)};
  if (times.in_units) {
    const Program stages = program::schedule(layout);
    return plan::grid_text(stages, layout, plan::simulate(stages, layout, plan::unit_times(stages, layout)).spans, options);
  }
  plan::GridOptions seconds = options;
  seconds.unit = plan::round_step(simulation.use.step_seconds, kGridColumns);
  return cat("a column every ", plan::time_text(seconds.unit, false), "\n",
             plan::grid_text(program, layout, simulation.spans, seconds));
}

}  // namespace

bool draws_step(const CommandLine& command_line) {
  const auto there = [&](const char* flag) { return command_line.has(flag); };
  return std::any_of(kDrawings.begin(), kDrawings.end(), there) ||
         (command_line.json && std::any_of(kTimes.begin(), kTimes.end(), there));
}

namespace {

void check_drawing(const CommandLine& command_line, const std::string& what) {
  for (const char* flag : kDrawings)
    if (command_line.has(flag) && what != "program")
      refuse(cat("--", flag, " draws a program, and not ", what), "lockstep show program");
  for (const char* flag : kTimes) {
    if (!command_line.has(flag)) continue;
    if (what != "program")
      refuse(cat("--", flag, " says how long the actions of a program take, and this is ", what), "lockstep show program");
    if (!draws_step(command_line))
      refuse(cat("--", flag, " says how long actions take, and nothing is drawn with it"),
             "add --grid, --svg FILE, --html FILE, --trace FILE or --json");
  }
  if (command_line.has("costs") && command_line.has("measured") && !command_line.has("html") && !command_line.has("trace"))
    refuse("--measured beside --costs is drawn by --html and --trace alone", "leave one of the two out");
  for (const char* flag : {"rank", "draw", "full"})
    if (draws_step(command_line) && command_line.has(flag))
      refuse(cat("--", flag, " is of the list of actions, and the drawing over time shows all ranks"), cat("leave --", flag, " out"));
  if (what == "schedules" && command_line.json)
    refuse("--json with schedules", "lockstep show program --json tells one schedule");
  if (command_line.has("grid") && command_line.json)
    refuse("--grid is text, --json is not", "leave one of them out; --trace FILE writes the times of all actions as JSON");
}

}  // namespace

void check_flags(const CommandLine& command_line, const std::string& what) {
  for (const Use& use : uses())
    if (command_line.has(use.flag) && std::find(use.pages.begin(), use.pages.end(), what) == use.pages.end())
      refuse(cat("--", use.flag, " goes with ", join(use.pages, " or "), ", and not with ", what),
             cat("lockstep show ", use.pages[0], ", or leave --", use.flag, " out"));
  if (command_line.has("ranks-per-node") && command_line.has("rank"))
    refuse("--ranks-per-node places all ranks, and --rank shows one", "leave one of the two out");
  for (const char* flag : {"draw", "full"})
    if (command_line.has(flag) && command_line.json)
      refuse(cat("--", flag, " is of the text, and --json has all of it"), "leave one of the two out");
  check_drawing(command_line, what);
}

void check_extent(const CommandLine& command_line, const std::string& what, const Layout& layout) {
  constexpr int kMostRanksInJson = 1 << 17;
  const int ranks = layout.mesh.world_size();
  const int64_t actions = 2 * layout.num_layers() * layout.num_microbatches() * (ranks / layout.pipeline.ranks);
  if ((draws_step(command_line) || command_line.has("draw")) && actions > program::kMostActions)
    refuse(cat("a drawing over time has F and B of all ranks: ", actions, ", more than ", program::kMostActions),
           "fewer ranks on the data axes do the same");
  const bool groups = what == "layout";
  if (command_line.json && (groups || !command_line.has("rank")) && ranks > kMostRanksInJson)
    refuse(cat("--json tells each of ", ranks, " ranks, more than ", kMostRanksInJson), groups ? "leave --json out" : "--rank R tells one of them");
}

std::string step_page(const CommandLine& command_line, const Layout& layout, const Program& program) {
  std::optional<plan::Measured> measured;
  std::optional<plan::Typical> typical;
  if (command_line.has("measured")) std::tie(measured, typical) = measured_steps(command_line, layout, program);
  const plan::ActionTimes times = times_of(command_line, layout, program, measured);
  const plan::Simulation simulation = plan::simulate(program, layout, times);
  const plan::ReportInput report{
      .program = program, .layout = layout, .simulation = simulation, .times = times, .measured = measured, .typical = typical};
  std::string text;
  if (command_line.has("grid")) text += grid(layout, program, simulation, times) + "\n";
  text += command_line.json ? plan::step_numbers(report).dump(2) + "\n" : summary(layout, simulation, times);
  const auto write = [&](const char* flag, const auto& content) {
    if (!command_line.has(flag)) return;
    write_file(command_line.value(flag), content());
    if (!command_line.json) text += cat("written: ", command_line.value(flag), "\n");
  };
  write("svg", [&] {
    plan::GanttOptions options{.title = cat(program::schedule_name(layout.pipeline.kind), ": ", program::describe(layout)),
                               .in_units = times.in_units,
                               .critical_path = &simulation.critical_path};
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank)
      options.memory.push_back(program::memory_timeline(layout, program, rank));
    return plan::gantt_svg(program, layout, simulation.spans, options);
  });
  write("html", [&] { return plan::report_html(report); });
  write("trace", [&] {
    return plan::chrome_trace(program, layout, measured ? measured->spans : simulation.spans, !measured && times.in_units);
  });
  return text;
}

}  // namespace lockstep::apps

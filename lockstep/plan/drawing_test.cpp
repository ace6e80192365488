// What the drawings of a step say: text grid, SVG, page, Chrome trace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/drawing.h"
#include "lockstep/plan/test_layouts.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::plan {
namespace {

using program::ScheduleKind;
using testing::HasSubstr;
using testing::Not;

struct Step {
  explicit Step(const PipelineCase& of)
      : layout(pipeline_layout(of)), program(program::build_program(layout)), times(unit_times(program, layout)),
        simulation(simulate(program, layout, times)) {}
  program::Layout layout;
  program::Program program;
  ActionTimes times;
  Simulation simulation;
};

std::string grid_of(const PipelineCase& of, int width = 120) {
  const program::Program program = stage_program(of);
  const program::Layout layout = pipeline_layout(of);
  return grid_text(program, layout, simulate(program, layout, unit_times(program, layout)).spans, {.width = width});
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// By hand: figure 2 of Huang et al. 2019 with two ranks and two microbatches, B twice as long as F.
TEST(Grid, GPipeByHand) {
  EXPECT_EQ(grid_of({.kind = ScheduleKind::kGPipe, .ranks = 2, .microbatches = 2}),
            "time    0              5\n"
            "rank 0  F0 F1 .  .  .  B0 -- B1 --\n"
            "rank 1  .  F0 F1 B0 -- B1 -- .  .\n");
}

// Figure 4 of Narayanan et al. 2021, of two ranks.
TEST(Grid, OneFOneBByHand) {
  EXPECT_EQ(grid_of({.ranks = 2, .microbatches = 3}),
            "time    0              5              10\n"
            "rank 0  F0 F1 .  .  B0 -- F2 B1 -- .  B2 --\n"
            "rank 1  .  F0 B0 -- F1 B1 -- F2 B2 -- .  .\n");
}

TEST(Grid, LongStepsGoOnBelow) {
  const std::string text = grid_of({.kind = ScheduleKind::kInterleaved, .ranks = 4, .microbatches = 16, .virtual_stages = 2}, 80);
  EXPECT_GT(count(text, "\ntime "), 1);
  EXPECT_THAT(text, HasSubstr("F0b"));
  for (const std::string& line : split(text, '\n')) EXPECT_LE(line.size(), 80u);
}

TEST(Boxes, LayersOfAStageAreOne) {
  const Step step({.ranks = 2, .microbatches = 3});
  const auto rows = boxes(step.program, step.layout, step.simulation.spans, 1e-9);
  for (const std::vector<Box>& row : rows) {
    int computing = 0;
    for (const Box& box : row) computing += box.computes();
    EXPECT_EQ(computing, 6);  // F and B of three microbatches, though a stage has two layers
  }
}

TEST(Gantt, HoldsEveryBoxAndRefersToNothing) {
  const Step step({.kind = ScheduleKind::kZbH1, .ranks = 3, .microbatches = 6});
  GanttOptions options{.title = "a < b & \"c\"", .in_units = true, .critical_path = &step.simulation.critical_path};
  for (int rank = 0; rank < 3; ++rank) options.memory.push_back(program::memory_timeline(step.layout, step.program, rank));
  const std::string svg = gantt_svg(step.program, step.layout, step.simulation.spans, options);
  for (const char* name : {"F", "I", "W"})
    EXPECT_EQ(count(svg, cat("<rect class=\"", name, " ")), 18) << name;
  EXPECT_EQ(count(svg, "<path class=\"a\""), 3);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_GT(count(svg, " c\" x="), 10);  // outlined
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_EQ(count(svg, "http"), 1);      // the name of SVG's namespace
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(ChromeTrace, ArrowsLeadFromSendToReceive) {
  const Step step({.ranks = 3, .microbatches = 4});
  const Json json = parse_json(chrome_trace(step.program, step.layout, step.simulation.spans, true), "trace");
  std::map<int, std::set<std::string>> ends;
  double computed = 0;
  for (const Json& event : json["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase == "X" && event["tid"] == 0) computed += event["dur"].get<double>();
    if (phase == "s" || phase == "f") ends[event["id"].get<int>()].insert(phase + cat(event["pid"].get<int>()));
  }
  EXPECT_NEAR(computed, 3 * 4 * 3 * 1e3, 1e-3);
  EXPECT_EQ(ends.size(), 2u * 2 * 4);  // two borders, there and back, of four microbatches
  for (const auto& [id, two] : ends) EXPECT_EQ(two.size(), 2u) << id;
}

TEST(Report, IsOneFileThatSaysWhatTheNumbersAre) {
  const Step step({.ranks = 4, .microbatches = 8});
  const ReportInput input{.program = step.program,
                          .layout = step.layout,
                          .simulation = step.simulation,
                          .times = step.times,
                          .measured = Measured{.step = 12, .spans = step.simulation.spans}};
  const std::string html = report_html(input);
  EXPECT_EQ(count(html, "<svg "), 2);
  EXPECT_THAT(html, HasSubstr("<b>27.3 %</b><span>bubble, simulated"));  // 3 / 11
  EXPECT_THAT(html, HasSubstr("<b>27.3 %</b><span>bubble, (p-1)/(m+p-1) of equal stages"));
  EXPECT_THAT(html, HasSubstr("with 16 microbatches instead of 8 the formula says 15.8 % instead of 27.3 %"));
  EXPECT_THAT(html, HasSubstr("step 12, measured"));
  EXPECT_EQ(count(html, "http"), 2);  // SVG's namespace, twice
  EXPECT_EQ(count(html, "src="), 0);
  const size_t begin = html.find("id=\"data\">") + 10;
  EXPECT_NEAR(parse_json(html.substr(begin, html.find("</script>") - begin), "data")["bubble_formula"].get<double>(), 3.0 / 11, 1e-12);
}

TEST(Report, ShowsWhatIsHiddenOfCallsInsideLayers) {
  const Step step({.ranks = 2, .microbatches = 2});
  CallsOfRanks calls = {{{0, "blocks.*.attention", 0, 1, 0.25}, {0, "blocks.*.attention", 2, 3}}, {{0, "blocks.*.attention", 4, 5, 1}}};
  const std::string html = report_html({.program = step.program,
                                        .layout = step.layout,
                                        .simulation = step.simulation,
                                        .times = step.times,
                                        .measured = Measured{.step = 12, .spans = step.simulation.spans, .calls = calls}});
  EXPECT_THAT(html, HasSubstr("<td>blocks.*.attention</td><td>1.5</td><td>1.5 s</td><td>625 ms</td>"));
  GanttOptions options{.calls = &calls};
  for (int rank = 0; rank < 2; ++rank) options.memory.push_back(program::memory_timeline(step.layout, step.program, rank));
  const std::string with = gantt_svg(step.program, step.layout, step.simulation.spans, options);
  options.calls = nullptr;
  const std::string without = gantt_svg(step.program, step.layout, step.simulation.spans, options);
  EXPECT_EQ(count(with, "<rect class=\"C\" "), count(without, "<rect class=\"C\" ") + 3 + 1) << "three calls, and the word for them below the picture";
  EXPECT_EQ(count(with, "<rect fill=\"url(#step-hatch)"), count(without, "<rect fill=\"url(#step-hatch)") + 2);
  EXPECT_THAT(chrome_trace(step.program, step.layout, step.simulation.spans, false, calls), HasSubstr("inside layers"));
}

TEST(Text, NumbersForPeople) {
  EXPECT_EQ(decimal(12.0), "12");
  EXPECT_EQ(decimal(0.25, 2), "0.25");
  EXPECT_EQ(decimal(-0.001), "0");
  EXPECT_EQ(time_text(0.0125, false), "12.5 ms");
  EXPECT_EQ(time_text(33, true), "33 units");
  EXPECT_EQ(round_step(33, 12), 5);
  EXPECT_EQ(round_step(0.0012, 12), 1e-4);
}

}  // namespace
}  // namespace lockstep::plan

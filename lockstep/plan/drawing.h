// A step as a picture, as text, for Perfetto and as a page: all of the same spans.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/simulate.h"
#include "lockstep/plan/step_trace.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::plan {

struct GanttOptions {
  std::string title{};
  bool in_units = false;
  double seconds = 0;  // of the time axis; 0 = the step
  std::string id = "step";  // of its patterns: two pictures on one page have different ones
  const std::vector<ActionRef>* critical_path = nullptr;
  std::vector<program::MemoryTimeline> memory{};  // by rank
  const CallsOfRanks* calls = nullptr;            // inside layers
};

// SVG that stands alone, and inside of report_html(). A row per rank: what it computes, with the number of the microbatch where
// there is room, hatched where it waits, also inside layers where `calls` are known; below that what it communicates and copies; and the memory of the device: what it holds
// all the time, and on top what comes and goes, to the largest of all ranks. The actions of the critical path are outlined.
// Colours of Okabe and Ito, told apart by colour-blind people too; they follow the viewer's light or dark mode, and paper is light.
// Refers to nothing outside.
std::string gantt_svg(const program::Program& program, const program::Layout& layout, const Spans& spans,
                      const GanttOptions& options);

struct GridOptions {
  double unit = 1;  // of time in a column
  int width = 120;  // columns of the terminal; longer steps go on below
  std::vector<int> ranks{};  // shown; empty = all
};

// For a terminal. A row per rank, a column per unit: "F0 F1 . . B0 -- W0", -- where the action goes on, . where the rank does not
// compute. Where a rank has several stages a letter says which: "F0a F0b". What begins and ends in one unit beside another is left
// out.
//   time    0  .  .  .  .  5
//   rank 0  F0 F1 .  .  B0 -- B1 --
std::string grid_text(const program::Program& program, const program::Layout& layout, const Spans& spans,
                      const GridOptions& options = {});

// For chrome://tracing and Perfetto, in the Trace Event Format as JSON: a process per rank with the threads compute, network and
// copies; a complete event (X) for every action that takes time and every call inside layers, and an arrow (s to f) from each SEND to
// what takes it in. Times in microseconds; units count as milliseconds.
std::string chrome_trace(const program::Program& program, const program::Layout& layout, const Spans& spans, bool in_units,
                         const CallsOfRanks& calls = {});

struct Measured {
  int64_t step = 0;
  Spans spans{};
  Overhead overhead{};
  CallsOfRanks calls{};
};
// A step that is simulated with the medians of several measured ones.
struct Typical {
  std::vector<int64_t> steps{};
  Simulation simulation{};
};

struct ReportInput {
  const program::Program& program;
  const program::Layout& layout;
  const Simulation& simulation;
  const ActionTimes& times;                  // of the simulation
  std::optional<Measured> measured{};
  std::optional<Typical> typical{};
  std::string title{};                       // of the run; "" = the layout's
};

// The page of a step, RUN/report.html and `show program --html`: simulated over measured, with what that says in numbers. One HTML
// file that refers to nothing outside: header with the layout, a sentence, cards with step time and bubble (simulated, formula,
// measured), the simulated step over the measured one on one time axis, memory of every rank below it, a row for every rank, the same
// as text, and all numbers as JSON in <script type="application/json">. Light and dark, and for paper.
std::string report_html(const ReportInput& input);

// A page of that form: title, model and layout, then `body`.
std::string page_html(std::string_view title, const program::Layout& layout, std::string_view body);
// `page` with `section` at its end, or in the place of the section that has gone by that name before.
std::string with_section(std::string page, std::string_view name, std::string_view section);

// Those numbers: {layout, schedule, ranks, virtual_stages, microbatches, unit, times, simulated, bubble_formula, measured, typical};
// ranks are the pipeline's, "unit" is s, or "unit" where the times are of equal stages. simulated and measured hold step, bubble,
// idle and the busy time of each rank; measured also the number of its step, the overhead of the engine per action and the calls inside layers; typical as
// simulated, and its steps. What there is not is left out.
OrderedJson step_numbers(const ReportInput& input);

// What these are put together from: actions as boxes on the lanes of a rank.
enum class BoxKind { kForward, kBackward, kInput, kWeight, kRecompute, kUpdate, kNetwork, kCopy };
// How each is shown.
struct BoxWords {
  BoxKind kind;
  std::string_view letter;  // in the grid; its class in a picture
  std::string_view legend;
  program::Work work = program::Work::kNone;  // of the actions that it is of
};
inline constexpr BoxWords kBoxKinds[] = {
    {BoxKind::kForward, "F", "F forward", program::Work::kForward},
    {BoxKind::kBackward, "B", "B backward", program::Work::kInputAndWeight},
    {BoxKind::kInput, "I", "I input gradient", program::Work::kInput},
    {BoxKind::kWeight, "W", "W weight gradient", program::Work::kWeight},
    {BoxKind::kRecompute, "R", "RECOMPUTE", program::Work::kAgain},
    {BoxKind::kUpdate, "U", "optimizer"},
    {BoxKind::kNetwork, "C", "communication"},
    {BoxKind::kCopy, "H", "host copy"},
};
constexpr std::string_view letter_of(BoxKind kind) { return std::ranges::find(kBoxKinds, kind, &BoxWords::kind)->letter; }

// Neighbouring layers of one stage and microbatch as one.
struct Box {
  BoxKind kind = BoxKind::kForward;
  int stage = -1, microbatch = -1;  // of F, B, I, W, RECOMPUTE, SEND
  double start = 0, end = 0;
  int first = 0;                    // index of its first action
  bool critical = false;            // one of them is in the critical path
  bool computes() const { return kind < BoxKind::kNetwork; }
};

// By rank, in the order of their lists; nothing that takes no time. Neighbours with at most `gap` of time between them are one.
std::vector<std::vector<Box>> boxes(const program::Program& program, const program::Layout& layout, const Spans& spans, double gap,
                                    const std::vector<ActionRef>* critical_path = nullptr);

int64_t peak_bytes(const program::MemoryTimeline& timeline);  // of the device

}  // namespace lockstep::plan

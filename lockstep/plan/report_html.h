// The page of a step: simulated over measured, with what that says in numbers. RUN/report.html and `show program --html`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/plan/simulate.h"
#include "lockstep/plan/step_trace.h"

namespace lockstep::plan {

struct Measured {
  int64_t step = 0;
  Spans spans{};
  std::optional<Overhead> overhead{};
};
// A step that is simulated with the medians of several measured ones.
struct Typical {
  std::vector<int64_t> steps{};
  Utilisation use{};
  double period = 0;  // as Simulation has it
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

// One HTML file that refers to nothing outside: header with the layout, a sentence, cards with step time and bubble (simulated,
// formula, measured), the simulated step over the measured one on one time axis, memory of every rank below it, a row for every rank,
// the same as text, and all numbers as JSON in <script type="application/json">. Light and dark, and for paper.
std::string report_html(const ReportInput& input);

// Those numbers: {layout, schedule, ranks, virtual_stages, microbatches, unit, times, simulated, bubble_formula, measured, typical};
// ranks are the pipeline's, "unit" is s, or "unit" where the times are of equal stages. simulated and measured hold step, bubble,
// idle and the busy time of each rank; measured also the number of its step and the overhead of the engine per action; typical as
// simulated, and its steps. What there is not is left out.
OrderedJson step_numbers(const ReportInput& input);

}  // namespace lockstep::plan

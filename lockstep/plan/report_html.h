// The page of a step: simulated over measured, with what that says in numbers. RUN/report.html and `show program --html`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/plan/simulate.h"

namespace lockstep::plan {

struct Measured {
  int64_t step = 0;
  Spans spans{};
};

struct ReportInput {
  const program::Program& program;
  const program::Layout& layout;
  const Simulation& simulation;
  const ActionTimes& times;                  // of the simulation
  std::optional<Measured> measured{};
  std::string title{};                       // of the run; "" = the layout's
};

// One HTML file that refers to nothing outside: header with the layout, a sentence, cards with step time and bubble (simulated,
// formula, measured), the simulated step over the measured one on one time axis, memory of every rank below it, a row for every rank,
// the same as text, and all numbers as JSON in <script type="application/json">. Light and dark, and for paper.
std::string report_html(const ReportInput& input);

}  // namespace lockstep::plan

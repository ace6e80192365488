// A step as a picture, as text and for Perfetto: all of the same spans. Numbers as they show them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/matching.h"
#include "lockstep/plan/spans.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::plan {

struct GanttOptions {
  std::string title{};
  bool in_units = false;
  double seconds = 0;  // of the time axis; 0 = the step
  std::string id = "step";  // of its patterns: two pictures on one page have different ones
  const std::vector<ActionRef>* critical_path = nullptr;
  std::vector<program::MemoryTimeline> memory{};  // by rank; empty: no strips
  int width = 1200;                               // pixels
  int max_ranks = 64;
};

// SVG that stands alone, and inside of report_html.h. A row per rank: what it computes, with the number of the microbatch where
// there is room, hatched where it waits; below that what it communicates and copies; and the memory of the device: what it holds
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
// copies; a complete event (X) for every action that takes time, and an arrow (s to f) from each SEND to what takes it in. Times in
// microseconds; units count as milliseconds.
std::string chrome_trace(const program::Program& program, const program::Layout& layout, const Spans& spans, bool in_units);

// What these and the page of a step (report_html.h) are put together from.
std::string escaped(std::string_view text);   // & < > "
std::string decimal(double value, int digits = 1);  // fixed, without zeros at its end
std::string percent_text(double share);       // "27.3 %"
// "12.3 ms", or "12.3 units"; in the unit that fits `scale`, so that the marks of an axis agree, else that fits `seconds`.
std::string time_text(double seconds, bool in_units, std::optional<double> scale = std::nullopt);
// A round step that cuts `range` into at most `parts`.
double round_step(double range, int parts);

int64_t peak_bytes(const program::MemoryTimeline& timeline);  // of the device

}  // namespace lockstep::plan

// A step as a picture: SVG that stands alone, and inside of report_html.h.
#pragma once

#include <string>
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

// A row per rank: what it computes, with the number of the microbatch where there is room, hatched where it waits; below that what
// it communicates and copies; and the memory of the device: what it holds all the time, and on top what comes and goes, to the largest of all ranks. The
// actions of the critical path are outlined. Colours of Okabe and Ito, told apart by colour-blind people too; they follow
// the viewer's light or dark mode, and paper is light. Refers to nothing outside.
std::string gantt_svg(const program::Program& program, const program::Layout& layout, const Spans& spans,
                      const GanttOptions& options);

}  // namespace lockstep::plan

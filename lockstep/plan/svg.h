// Small pieces of SVG and HTML; the memory of a rank over the time of a step, as a small area chart.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/spans.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::plan {

std::string escaped(std::string_view text);   // & < > "
std::string decimal(double value, int digits = 1);  // fixed, without zeros at its end
// "12.3 ms", or "12.3 units".
std::string time_text(double seconds, bool in_units);
// The same in the unit that fits `scale`: the marks of an axis agree.
std::string time_text(double seconds, bool in_units, double scale);
// A round step that cuts `range` into at most `parts`.
double round_step(double range, int parts);

int64_t peak_bytes(const program::MemoryTimeline& timeline);  // of the device

struct MemoryStrip {
  double left = 0, right = 100, height = 20;  // pixels
  double seconds = 1;                         // from left to right
  int64_t most = 1;                           // bytes from bottom to top
  // Paths of class s (parameters, gradients, optimizer state) and on top of it a (activations and buffers). A column of pixels shows
  // the most of its time. What an action holds counts from the moment the rank comes to it in its list.
  std::string svg(const std::vector<program::Action>& actions, const std::vector<Span>& spans,
                  const program::MemoryTimeline& timeline) const;
};

}  // namespace lockstep::plan

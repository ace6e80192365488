// The memory of a rank over the time of a step, as a small area chart.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/spans.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::plan {

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

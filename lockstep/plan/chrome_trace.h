// A step as a Chrome trace, for chrome://tracing and Perfetto.
#pragma once

#include <string>

#include "lockstep/plan/spans.h"

namespace lockstep::plan {

// The Trace Event Format of Chrome as JSON: a process per rank with the threads compute, network and copies; a complete event (X)
// for every action that takes time, and an arrow (s to f) from each SEND to what takes it in. Times in microseconds; units count as
// milliseconds.
std::string chrome_trace(const program::Program& program, const program::Layout& layout, const Spans& spans, bool in_units);

}  // namespace lockstep::plan

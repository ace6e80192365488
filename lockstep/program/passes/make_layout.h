// From a run configuration to the layout of its step, and what a layout refuses.
#pragma once

#include <vector>

#include "lockstep/config/check.h"
#include "lockstep/config/load.h"
#include "lockstep/program/layout.h"

namespace lockstep::program {

// How large a job may be: what is planned is a list in memory. Judged from a few numbers, before anything of that size is made.
inline constexpr int64_t kMostActions = int64_t{1} << 23;  // F and B of a step, of one copy of the model: planned in seconds

// F and B of all layers and microbatches: what the ranks of a pipeline do together, and every other pipeline again.
// kBeyond64Bits where that is more.
int64_t actions_of(const config::RunConfig& config, const arch::ModelConfig& model, int world_size);

// Of a configuration whose grid has been read (config::read_schedule); no file is opened here.
//
// What does not fit `world_size` ranks: all of config::layout_problems with the sizes of the model, and what the pipeline's
// schedule refuses; all of one depth, below kDepthsOfLayout. Empty = all well.
inline constexpr int kDepthsOfLayout = 10;
std::vector<config::LayoutProblem> layout_problems(const config::RunConfig& config, const arch::ModelConfig& model,
                                                   int world_size);
// ConfigError LS1101 with all of them, and with the place each value came from.
Layout make_layout(const config::LoadedConfig& loaded, const arch::ModelConfig& model, int world_size);
Layout make_layout(const config::RunConfig& config, const arch::ModelConfig& model, int world_size);

}  // namespace lockstep::program

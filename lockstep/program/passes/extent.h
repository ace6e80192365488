// How large a job may be: what is planned is a list in memory, and what is counted fits into 64 bits. Judged from a few
// numbers, before anything of that size is made.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/config/check.h"

namespace lockstep::program {

inline constexpr int64_t kMostActions = int64_t{1} << 23;       // F and B of a step, over all ranks: planned in seconds
inline constexpr int64_t kMostCuts = int64_t{1} << 29;          // that balanced_stages() compares
inline constexpr double kMostBytes = 4e18;                      // of anything that is added up for one rank

// F and B of all layers, microbatches and copies of the model; kBeyond64Bits where that is more.
int64_t actions_of(const config::RunConfig& config, const arch::ModelConfig& model, int world_size);

// What goes beyond them, each with its equation and values that fit. Of a configuration whose other relations hold.
std::vector<config::LayoutProblem> extent_problems(const config::RunConfig& config, const arch::ModelConfig& model,
                                                   int world_size);

}  // namespace lockstep::program

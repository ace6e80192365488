// The part of the run configuration that the engine needs.
#pragma once

#include "lockstep/config/run_config.h"
#include "lockstep/engine/executor.h"

namespace lockstep::train {

// EnvironmentError LS3001 for "cuda" where LibTorch sees no GPU.
at::Device device_of(const config::RunConfig& config);
engine::ExecutorOptions executor_options(const config::RunConfig& config, const program::Layout& layout);

}  // namespace lockstep::train

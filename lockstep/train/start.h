// What a run says of itself at its start: the header of the terminal, and the identities that a checkpoint keeps.
#pragma once

#include <string>

#include "lockstep/base/json.h"
#include "lockstep/data/sampler.h"
#include "lockstep/engine/executor.h"
#include "lockstep/program/memory.h"
#include "lockstep/train/console.h"
#include "lockstep/train/run_directory.h"

namespace lockstep::train {

struct TrainJob;

// What decides which tokens are sample i.
Json data_identity(const config::RunConfig& config, const program::Layout& layout, const data::Sampler& sampler);

// The resolved layout with predicted memory.
HeaderTable run_header(const TrainJob& job, const engine::Executor& executor);
// Predicted and measured bytes by category, a line each.
std::string memory_comparison(const program::MemoryBytes& predicted, const program::MemoryBytes& measured);

// Copies the tokenizer into the run directory, so that the run can be generated from by itself.
void keep_tokenizer(const config::RunConfig& config, const RunDirectory& directory);

}  // namespace lockstep::train

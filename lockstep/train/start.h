// What a run says of itself: the header of the terminal, the identities that a checkpoint keeps, what a rank is doing.
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

// The last `calls` collectives of each group of this rank, and its stack as StackDump gives it. Thread-safe.
std::string activity_report(engine::Groups& groups, const std::string& stack, int calls);

// Copies the tokenizer into the run directory, so that the run can be generated from by itself.
void keep_tokenizer(const config::RunConfig& config, const RunDirectory& directory);

}  // namespace lockstep::train

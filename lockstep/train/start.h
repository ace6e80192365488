// What a run says of itself: the header of the terminal, the identities that a checkpoint keeps, what a rank is doing.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/data/sampler.h"
#include "lockstep/engine/executor.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/train/run_output.h"

namespace lockstep::train {

struct TrainJob;

// What decides which tokens are sample i.
Json data_identity(const config::RunConfig& config, const program::Layout& layout, const data::Sampler& sampler);

// The resolved layout with predicted memory.
HeaderTable run_header(const TrainJob& job, const engine::Executor& executor);
// Of rank 0: predicted and measured bytes by category, a line each; the most of the device at one time; the host where it
// holds any. The same as event "memory".
void report_memory(const engine::Executor& executor, int64_t step, RunOutput& output);
// Peak of the worst rank. Collective over the world.
double worst_memory_gib(const engine::Executor& executor, engine::Groups& groups);

// What a rank does: the last collectives of each of its groups (Communicator::last_calls), the save in flight
// (Saver::activity), and its stack as StackDump gives it. `calls` of each group are shown.
struct Activity {
  int rank = 0;
  std::vector<std::pair<std::string, std::string>> calls{};
  std::string save{};
  std::string stack{};
};
std::string activity_report(const Activity& activity, int calls);

// The weights of model.from in place of the initial values: every rank reads its own pieces, master weights included.
// False, and nothing done, where model.from is not set. Throws as checkpoint::import_hf.
bool load_start_values(const config::RunConfig& config, engine::Executor& executor);

}  // namespace lockstep::train

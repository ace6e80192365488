// What a run that goes on does otherwise than the run that saved its checkpoint: the settings that decide what is computed, and
// what the difference does to the learning rate.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/checkpoint/train_state.h"
#include "lockstep/config/run_config.h"

namespace lockstep::train {

// For a checkpoint to keep: "optimizer.lr" -> its value as the configuration prints it; of [optimizer] all, of [train] what a
// step depends on.
Json settings_of(const config::RunConfig& config);

// Name and "before -> now", in the order of the configuration: settings, number of ranks, layout, data. Last, where the
// schedule has changed, "learning rate": of the last step before, of the first one now, and of the last. Empty where nothing
// has changed; a checkpoint of a version that kept no settings is compared in the others alone.
std::vector<std::pair<std::string, std::string>> changes(const checkpoint::TrainState& saved, const checkpoint::TrainState& now,
                                                         const config::RunConfig& config);

}  // namespace lockstep::train

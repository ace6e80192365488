// Loading a checkpoint into any layout: every rank fills its own pieces from whichever saved pieces overlap them.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/checkpoint/directory.h"
#include "lockstep/checkpoint/train_state.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/engine/state.h"

namespace lockstep::checkpoint {

// Fills `state` (each tensor's `local`) from the checkpoint in `step_folder`; not collective. Files are read piece by
// piece, only those that overlap, each with its checksum. Where precision differs: an fp32 parameter or master comes
// from the saved master weights if there are any, else from the saved parameters; a bf16 parameter is rounded from what
// was saved. CheckpointError LS1302..LS1305 for a damaged checkpoint (`state` then holds a mixture), LS1307 for one of
// another model (nothing was written to `state`), LS1308 for one without the optimizer state that is asked for.
TrainState load(const std::filesystem::path& step_folder, std::span<const engine::StateTensor> state);

// The same for the parameters in `state` alone; everything else in it is left as it is. For generation and evaluation.
TrainState load_parameters_only(const std::filesystem::path& step_folder, std::span<const engine::StateTensor> state);

struct ResumeRequest {
  std::filesystem::path path;  // RUN/checkpoints: the newest whole step; or the folder of one step: this one or none
  std::span<const engine::StateTensor> state;
  comm::Communicator& world;
  Json model = nullptr;  // of this run: keys whose values differ in the checkpoint are LS1307; null = not compared
};

struct Resumed {
  std::filesystem::path path;
  TrainState train_state;
  std::vector<StepFolder> skipped{};  // newer ones that are not whole, with the reason: to be reported
};

// Collective: all ranks load the same step, the newest that is whole on all of them. Nothing where there is no
// checkpoint at all. CheckpointError LS1301 where there are some and none is whole, LS1307 and LS1308 as load(), on
// every rank alike.
std::optional<Resumed> resume(const ResumeRequest& request);

}  // namespace lockstep::checkpoint

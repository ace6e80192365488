// Saving a checkpoint: all ranks write their shares at once, and it exists from the moment its folder is renamed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/io.h"
#include "lockstep/checkpoint/train_state.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/engine/state.h"

namespace lockstep::checkpoint {

struct SaveRequest {
  std::filesystem::path directory;  // RUN/checkpoints, on a file system that all ranks share; made where missing
  std::span<const engine::StateTensor> state;  // of this rank; together the ranks must hold every tensor whole
  bool copied = false;  // a copy on the host, confirmed when it was taken (comm::Communicator::confirm)
  const TrainState& train_state;               // rank 0's is written
  comm::Communicator& world;
  int keep = 0;  // how many steps to keep, this one included; 0 = all
  Progress progress{};
  std::function<void()> guard{};  // on rank 0, before it changes the folder: throws where the run has lost it
};

struct SaveResult {
  std::filesystem::path path;          // .../step-00001200
  int64_t step = 0;
  uint64_t bytes = 0;                  // of all files, on every rank
  double seconds = 0;                  // from the call to the renamed folder
  std::vector<std::string> removed{};  // names of old steps, on rank 0
  std::string warning{};               // on rank 0: that the link `latest` could not be set, and why
};

// Collective. Every rank writes into .tmp-step-00001200, rank 0 gathers the manifest, writes it last and renames the
// folder; older steps are removed only after the new one was read back. If any rank fails, every rank throws
// CheckpointError LS1306 with that rank's reason, and older steps are untouched. So it is where a call on a GPU was aborted
// whose result `state` may be: each rank asks once its bytes have left the device. A step of the same number is replaced, as
// publish_step() does it.
// The deadline of `world` bounds how much longer one rank may write than another.
SaveResult save(const SaveRequest& request);

}  // namespace lockstep::checkpoint

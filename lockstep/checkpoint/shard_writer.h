// One rank's files of a checkpoint: its share of every tensor, and the part of the manifest that lists them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/io.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/engine/state.h"

namespace lockstep::checkpoint {

// The name of a tensor in the files: "<fqn>", "optim.master.<fqn>", "optim.<slot of the optimizer>.<fqn>".
std::string saved_name(const engine::StateTensor& tensor);

// What this rank writes of `state`, as views that it holds alone: of a piece that n ranks hold, its part of the rows;
// no empty ones. A share is its own share.
std::vector<engine::StateTensor> own_share(std::span<const engine::StateTensor> state);

// Writes model/shard-<rank + 1>-model-*.safetensors and the same in optim/, in the dialect that
// torch.distributed.checkpoint.HuggingFaceStorageReader opens: the offset of each piece in the metadata
// DCP_SHARDING_INFO, one piece of a tensor per file (a rank with several writes several files). Of `state`, its
// own_share() is written. Synced to the disk; the step and version of the result are not set.
Manifest write_shards(const std::filesystem::path& folder, std::span<const engine::StateTensor> state, int rank,
                      const Progress& progress = {});

}  // namespace lockstep::checkpoint

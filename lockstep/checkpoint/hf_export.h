// A checkpoint as a Hugging Face model directory that `transformers` loads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "lockstep/base/json.h"
#include "lockstep/checkpoint/io.h"
#include "lockstep/checkpoint/step_model.h"

namespace lockstep::checkpoint {

struct HfExportRequest {
  StepModel& step;                          // saved by any layout
  std::filesystem::path directory;          // is made; must not exist, or be empty
  Json config;                              // of config.json, without the dtype
  std::optional<at::ScalarType> dtype{};    // of all tensors; nothing = each as it was saved
  int64_t max_shard_bytes = 5'000'000'000;  // of the tensors of one file; one tensor may be larger
  std::map<std::string, std::filesystem::path> files{};  // further ones to copy, by their name in the directory
  Progress progress{};
};

struct HfExportResult {
  std::map<std::string, uint64_t> files{};  // bytes
  uint64_t tensor_bytes = 0;
  int64_t parameters = 0;
};

// Writes into .tmp-<name> beside the directory, syncs it and renames it: a directory of that name is whole. One
// tensor at most is held, and a part of one. Where fp32 is asked for and the run kept fp32 master weights, those are written. Every checksum of what
// is read is verified. CheckpointError LS1330 where the directory exists, LS1303, LS1304 for a damaged checkpoint;
// EnvironmentError LS3101 where the disk refuses; nothing is left behind then.
HfExportResult export_hf(const HfExportRequest& request);

}  // namespace lockstep::checkpoint

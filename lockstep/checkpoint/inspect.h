// What `lockstep checkpoint inspect` says of a step: what is in it, and whether every byte is what was written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/directory.h"

namespace lockstep::checkpoint {

struct StepReport {
  std::filesystem::path path;
  std::string set_aside{};              // "set-aside-1" for a step of an abandoned branch; else empty
  std::vector<std::string> problems{};  // none = whole
  // The rest is empty where the manifest cannot be read.
  TrainState train_state{};
  std::map<std::string, uint64_t> files{};  // bytes, by path in the step's folder
  uint64_t bytes = 0;
  int64_t parameters = 0;                          // elements of model/
  std::map<std::string, int64_t> model_tensors{};  // number of tensors by dtype: "F32"
  std::map<std::string, int64_t> optim_tensors{};
  bool whole() const { return problems.empty(); }
};

// Reads all of the checkpoint. Never throws for what is in it: that is in `problems`.
StepReport inspect_step(const std::filesystem::path& step_folder);

// The steps that `path` means: one step's folder, a folder of steps or a run directory; newest first. CheckpointError
// LS1313 where there is none.
std::vector<std::filesystem::path> steps_of(const std::filesystem::path& path);
// The steps that the run there has set aside; none where `path` is one step.
std::vector<std::filesystem::path> set_aside_steps_of(const std::filesystem::path& path);

std::string report_text(const StepReport& report);
OrderedJson report_json(const StepReport& report);

}  // namespace lockstep::checkpoint

// The folder `checkpoints/` of a run: step-00001200/{model,optim,train_state.json,manifest.json}, what is being written in
// .tmp-*, and steps of abandoned branches (branches.h). The newest step is found by reading manifests; `latest` is for people.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/train_state.h"

namespace lockstep::checkpoint {

inline constexpr std::string_view kTemporaryPrefix = ".tmp-";  // of what nobody may read
inline constexpr std::string_view kSetAsidePrefix = "set-aside-";  // of a folder of steps that nothing chooses (branches.h)

std::string step_name(int64_t step);  // "step-00001200"
// Of such a name, or of "step-00001200.new" (publish.h); nothing for any other.
std::optional<int64_t> parse_step_name(std::string_view);
// The same of a folder that may be written as a link, or with a slash at its end.
std::optional<int64_t> step_of(const std::filesystem::path& folder);

// The run directory that a step's folder, its checkpoints/ or itself stands for; relative where `path` is.
std::filesystem::path run_of(const std::filesystem::path& path);

// The manifest of a step's folder, whose name must not contradict it, with all its files present and of the right size;
// tensors are not read.
// CheckpointError LS1302, LS1303 (which file), LS1305.
Manifest read_manifest(const std::filesystem::path& step_folder);
TrainState read_train_state(const std::filesystem::path& step_folder, const Manifest& manifest);

// Reads every byte of the checkpoint; one line per file or tensor that is not what was written, naming it.
std::vector<std::string> verify_sums(const std::filesystem::path& step_folder, const Manifest& manifest);

// One step-* folder; whole if `problem` is empty.
struct StepFolder {
  std::filesystem::path path;
  int64_t step = 0;
  std::string problem{};
};
// Newest first, each number once: of a step that is being replaced the new one, unless it alone is damaged. Empty where
// `directory` does not exist. Does not read tensors.
std::vector<StepFolder> list_steps(const std::filesystem::path& directory);

struct Latest {
  std::optional<std::filesystem::path> path{};  // of the newest whole step
  int64_t step = 0;
  std::vector<StepFolder> skipped{};  // newer, but not whole: to be reported
};
Latest find_latest(const std::filesystem::path& directory);

// Removes what unfinished saves left behind.
void remove_temporary(const std::filesystem::path& directory);
// Keeps step `newest` and the keep - 1 whole steps before it (0 = all); returns the names of the removed ones. Later
// steps, broken ones and what was set aside stay.
std::vector<std::string> remove_old_steps(const std::filesystem::path& directory, int64_t newest, int keep);

}  // namespace lockstep::checkpoint

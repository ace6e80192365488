// A run that goes back to an earlier step leaves a branch behind: its later steps are set aside in `checkpoints/`, as
// set-aside-1/step-00000200. They are kept until somebody removes them; nothing chooses or deletes them. That a user asked for
// it is remembered in went-back.json, so that the same command, started again, goes on instead of going back once more.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/directory.h"

namespace lockstep::checkpoint {

inline constexpr const char* kWentBackName = "went-back.json";

struct SetAside {
  std::string folder{};              // "set-aside-1"; empty where there was nothing to set aside
  std::vector<std::string> steps{};  // "step-00000200", newest first
};

// For whoever holds the run, once `step` was loaded: sets aside whatever is later than `step` in `directory`, whole or not, and
// points `latest` at it. EnvironmentError LS3101.
SetAside set_aside_after(const std::filesystem::path& directory, int64_t step);
// The same where a user named the step: remembered. A kill in between is mended by finish_going_back().
SetAside go_back(const std::filesystem::path& directory, int64_t step);
void finish_going_back(const std::filesystem::path& directory);
// The step that go_back() went to last. CheckpointError LS1302, DataError LS1205 where its file is malformed.
std::optional<int64_t> went_back_to(const std::filesystem::path& directory);

// All steps that were set aside, the youngest branch first, each newest first.
std::vector<StepFolder> list_set_aside(const std::filesystem::path& directory);
// "set-aside-1" for a step in such a folder; nothing for any other.
std::optional<std::string> branch_of(const std::filesystem::path& step_folder);

}  // namespace lockstep::checkpoint

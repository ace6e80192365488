// Where a run begins, and where it goes on: what `checkpoint.resume` means in a run directory that may have checkpoints.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/train/run_directory.h"

namespace lockstep::train {

// A run directory with checkpoints of its own goes on from them, so that the same command can be started again and again:
// "none" and the path of another run say where a run *begins*. The path of one of its own steps goes back to it, once.
struct Beginning {
  enum class From : int {
    kNothing,    // initial values
    kOwn,        // its newest checkpoint
    kBack,       // the step of its own that checkpoint.resume names
    kElsewhere,  // what checkpoint.resume names: a step, or a folder of steps
  };
  From from = From::kNothing;
  std::string note{};  // for a person, where checkpoint.resume is not followed
};

// CheckpointError LS1310 where a path is to be followed and holds no checkpoint.
Beginning beginning_of(const RunDirectory& directory, const std::string& resume);

bool names_a_place(const std::string& resume);  // neither "auto" nor "none"
bool same_place(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace lockstep::train

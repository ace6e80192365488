// What every rank of a job was told alike, for train::require_same_job.
#pragma once

#include <vector>

#include "apps/lockstep/command_line.h"
#include "lockstep/train/same_job.h"

namespace lockstep::apps {

// The verb and its flags, then `more`, then the versions of Lockstep and LibTorch.
std::vector<train::Fact> job_facts(const CommandLine& command_line, const std::vector<train::Fact>& more);

}  // namespace lockstep::apps

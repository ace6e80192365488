// What the flags of `lockstep generate` and `lockstep chat` say about sampling.
#pragma once

#include "apps/lockstep/command_line.h"
#include "lockstep/infer/generate.h"

namespace lockstep::apps {

// All but max_new_tokens and the stop tokens. ConfigError LS1005 for values out of range.
infer::GenerateOptions sampling_of(const CommandLine& command_line);

// --threads, where it is given. ConfigError LS1005.
void set_threads(const CommandLine& command_line);

}  // namespace lockstep::apps

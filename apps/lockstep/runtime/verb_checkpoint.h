// The parts of `lockstep checkpoint` that have files of their own.
#pragma once

#include "apps/lockstep/command_line.h"

namespace lockstep::apps {

// export RUN | STEP DIR --to hf [--dtype fp32|bf16] [--max-shard-size 5GB]. The original config.json of a run that was
// started from a Hugging Face directory keeps the keys that we do not know.
int export_checkpoint(const CommandLine& command_line);

}  // namespace lockstep::apps

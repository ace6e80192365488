// The verbs that compute; part of liblockstep_runtime. A new one is one row in entry.cpp and one file.
#pragma once

#include "apps/lockstep/command_line.h"

namespace lockstep::apps {

struct RuntimeVerbRow {
  std::string_view name;
  int (*function)(const CommandLine&);
};

int verb_chat(const CommandLine& command_line);
int verb_checkpoint(const CommandLine& command_line);
// Of it: export RUN | STEP DIR --to hf [--dtype fp32|bf16] [--max-shard-size 5GB]. The original config.json of a run that was
// started from a Hugging Face directory keeps the keys that we do not know.
int export_checkpoint(const CommandLine& command_line);
int verb_generate_on_rank(const CommandLine& command_line);
int verb_train_on_rank(const CommandLine& command_line);
int verb_verify_on_rank(const CommandLine& command_line);

}  // namespace lockstep::apps

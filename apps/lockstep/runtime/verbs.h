// The verbs that compute; part of liblockstep_runtime. A new one is one row in entry.cpp and one file.
#pragma once

#include "apps/lockstep/command_line.h"

namespace lockstep::apps {

struct RuntimeVerbRow {
  std::string_view name;
  int (*function)(const CommandLine&);
};

}  // namespace lockstep::apps

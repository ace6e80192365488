// The seam between the program, which links liblockstep_core alone, and liblockstep_runtime, which it loads for verbs
// that compute.
#pragma once

#include <string>

#include "apps/lockstep/command_line.h"

namespace lockstep::apps {

struct RuntimeCall {
  const CommandLine& command_line;
};

// Loads the runtime library, where the program is not linked with it, and hands it the verb; returns its exit code. Exceptions pass
// through. EnvironmentError LS3120 where the library is missing or does not load.
int call_runtime(const CommandLine& command_line);

// Where the library is: beside the program, or in ../lib as `cmake --install` puts it. Empty where it is in neither.
std::string find_runtime_library();

// The exported function of the library, and its name for dlsym.
using RuntimeVerb = int(const RuntimeCall*);
inline constexpr const char* kRuntimeVerb = "lockstep_runtime_verb";

}  // namespace lockstep::apps

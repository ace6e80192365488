// The program `lockstep`: finds the verb, takes its command line apart and runs it.
#pragma once

#include <string>
#include <vector>

#include "apps/lockstep/runtime_call.h"

namespace lockstep::apps {

// What goes wrong is told on stderr and by the exit code, which it returns. `linked`: the runtime library, where the program is linked
// with it; null: it is loaded where a verb computes.
int run_program(const std::vector<std::string>& arguments, RuntimeVerb* linked = nullptr);

}  // namespace lockstep::apps

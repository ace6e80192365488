// The verbs for a program that is linked with the runtime library.
#include "apps/lockstep/program.h"
#include "lockstep/train/program.h"

extern "C" int lockstep_runtime_verb(const lockstep::apps::RuntimeCall* call);  // entry.cpp

namespace lockstep::train {

int run_program(const std::vector<std::string>& arguments) { return apps::run_program(arguments, lockstep_runtime_verb); }
int run_program(int argc, const char* const* argv) { return run_program({argv + 1, argv + argc}); }

}  // namespace lockstep::train

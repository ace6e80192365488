// The step program that an engine runs: made by the passes and proved.
#pragma once

#include "lockstep/program/passes/build.h"

namespace lockstep::program {

// All passes for the layout, the result verified. InternalError that names the pass which broke a rule.
Program build_program(const Layout& layout);

}  // namespace lockstep::program

// The verifier's rules for what moves between device, host and disk; see verify.h for what each rule says.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// [fetch], [state] and [input] of one rank's list, whose indices all exist.
std::vector<std::string> check_offloaded(const Program& program, const Layout& layout, int rank);

}  // namespace lockstep::program

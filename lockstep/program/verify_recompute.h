// The verifier's rule for recomputation; see verify.h.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// [recompute] of one rank's list of layers' actions, whose indices all exist.
std::vector<std::string> check_recomputed(const Program& program, const Layout& layout, int rank);

}  // namespace lockstep::program

// How many threads a rank computes with.
#pragma once

#include "lockstep/launch/identity.h"

namespace lockstep::launch {

// `wanted` where it is not 0; else this rank's part of the cores of its host, at most those it is bound to (launchers that
// bind their ranks give each a part).
int compute_threads(int wanted, const Identity& identity);

}  // namespace lockstep::launch

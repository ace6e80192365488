// The verifier's rules for the end of a step; see verify.h for what each rule says.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/verify.h"

namespace lockstep::program {

// REDUCE_GRAD, SHARD_GRAD, REDUCE_SHARD, PUSH.
bool reduces(ActionKind kind);

// [partial], [update], [pull] and [stale] of one rank's list, whose indices all exist.
std::vector<std::string> check_update(const Program& program, const Layout& layout, int rank, Pass after);

}  // namespace lockstep::program

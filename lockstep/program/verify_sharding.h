// The verifier's rules for parameters and gradients that come and go; see verify.h for what each rule says.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// [gather], [reshard] and [prefetch] of one rank's list, whose indices all exist.
std::vector<std::string> check_gathered(const Program& program, const Layout& layout, int rank);

// [reduce], [complete], [shard_grad] and [reduce_shard] where there are several shards or transient gradients.
std::vector<std::string> check_sharded_gradients(const Program& program, const Layout& layout, int rank);

}  // namespace lockstep::program

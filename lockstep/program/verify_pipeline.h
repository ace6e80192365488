// The rules of verify.h about the passes over layers and about pipelines. Internal to the verifier.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/verify.h"

namespace lockstep::program {

// [once], [order] and [free] of what one rank computes, and of its own transfers from transfer_activations on. The indices
// of its actions exist.
std::vector<std::string> check_passes(const Program& program, const Layout& layout, int rank, Pass after);

// [match] and [deadlock] over the ranks of pp; of programs in which check_passes found nothing.
std::vector<std::string> check_pipelines(const Program& program, const Layout& layout, Pass after);

}  // namespace lockstep::program

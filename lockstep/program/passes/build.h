// A step program from a layout: all passes, one after the other.
#pragma once

#include <span>

#include "lockstep/program/program.h"

namespace lockstep::program {

// The passes in their order, behind the schedule, which comes first.
enum class Pass { kSchedule, kExpandLayers, kTransferActivations, kShardParameters, kReduceGradients, kUpdate, kPostValidation, kOffload };
struct PassStep {
  Pass pass;
  const char* name;
  Program (*make)(Program, const Layout&);
};
std::span<const PassStep> pass_steps();

// Not verified: verify/verify.h has what runs.
Program make_program(const Layout& layout);
// The forward pass of one microbatch without gradients, with the parameters it needs.
Program evaluation_program(const Layout& layout);

}  // namespace lockstep::program

// Whether the plan that `lockstep show memory` shows fits the machine that is meant, and what to change where it does not.
#pragma once

#include <string>
#include <vector>

#include "apps/lockstep/command_line.h"
#include "lockstep/base/json.h"
#include "lockstep/plan/ways_out.h"

namespace lockstep::apps {

// A room that is too small.
struct Shortfall {
  plan::Room room;
  plan::Need need;
  std::vector<plan::WayOut> ways;
};

// Held against memory.device_limit where it is set; else on the CPU against what this host has left, as `lockstep train` would with
// the same flags. A plan for GPUs without a limit is held against nothing: they are elsewhere. Empty where all fits.
std::vector<Shortfall> shortfalls(const CommandLine& command_line, const config::RunConfig& config,
                                  const program::Layout& layout, const program::Program& program);

std::string shortfalls_text(const program::Layout& layout, const std::vector<Shortfall>& shortfalls);
OrderedJson shortfalls_json(const std::vector<Shortfall>& shortfalls);

}  // namespace lockstep::apps

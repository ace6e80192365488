// The drawings of `lockstep show program`: a step over time.
#pragma once

#include <string>

#include "apps/lockstep/command_line.h"
#include "lockstep/program/program.h"

namespace lockstep::apps {

// One of --grid, --svg, --html, --trace is there, or --json with --costs or --measured.
bool draws_step(const CommandLine& command_line);
// ConfigError LS1004 where a flag of `lockstep show` stands beside what it does not go with.
void check_flags(const CommandLine& command_line, const std::string& what);
// The same where a drawing over time, or a page that tells every rank, would be of more than fits in memory.
void check_extent(const CommandLine& command_line, const std::string& what, const program::Layout& layout);
// Simulates the step with the times that --costs or --measured say, else of equal stages; writes the files that were asked
// for; what to print: a summary, or with --json the numbers of plan::step_numbers().
std::string step_page(const CommandLine& command_line, const program::Layout& layout, const program::Program& program);

}  // namespace lockstep::apps

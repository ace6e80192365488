// The constants of software as a table of a TOML file:
//   [stack]
//   name = "CPU ranks"
//   kernels = "current"              # unfused, flash, current
//   product_cap = 0.71               # fields by the names of stack_constants()
//   [stack.origins]
//   product_cap = "fitted to runs/x, steps 10, 11"
#pragma once

#include <string>
#include <string_view>

#include "lockstep/plan/time/stack.h"

namespace lockstep::plan {

// All of them, with their origins. Reads back to the same stack.
std::string stack_toml(const Stack& stack);

// `base` with what [stack] says; a field whose origin is not said is of `origin`. Other tables of the file are a cluster's and not read here.
// ConfigError LS1153 with file, line and column: not TOML, no table [stack], an unknown key, a value that is no number of 0 or more.
Stack parse_stack_toml(std::string_view text, std::string_view origin, const Stack& base);

bool has_stack(std::string_view text);  // a line that begins [stack]
// The text with the lines of [stack], [stack.origins] and [host] (this_machine.h) empty, so that the others keep their numbers: for
// parse_cluster_toml().
std::string without_machine_tables(std::string_view text);

}  // namespace lockstep::plan

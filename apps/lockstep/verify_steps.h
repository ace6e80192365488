// --steps and --free of `lockstep verify`.
#pragma once

#include "apps/lockstep/command_line.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::apps {

struct VerifySteps {
  int64_t all = 3;
  int64_t free = 2;  // the last of them, in which layout and twin are left alone
};

// ConfigError LS1005. Two free steps are the least in which anything grows, and the one before them gives AdamW its states:
// with none, every gradient that is rounding noise becomes a full step.
inline VerifySteps verify_steps(const CommandLine& command_line) {
  VerifySteps steps;
  steps.all = command_line.integer("steps", steps.all);
  steps.free = command_line.integer("free", steps.all > steps.free ? steps.free : 0);
  if (steps.all < 1) reject("LS1005", "--steps: at least one step is needed");
  if (steps.free < 0 || steps.free > steps.all)
    reject("LS1005", cat("--free(", steps.free, ") of --steps(", steps.all, "): the steps at the end in which layout and twin are left alone"),
           cat("use a number from 0 to ", steps.all));
  return steps;
}

}  // namespace lockstep::apps

// trace.steps: which steps it names, and what it cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/load.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::config {
namespace {

RunConfig read(const std::string& steps) {
  return load_config_text(cat("[train]\nsteps = 20\nglobal_batch = 8\n[trace]\nsteps = \"", steps, "\"\n"), "run.toml").config;
}

TEST(Trace, NamesOneStepOrSeveral) {
  EXPECT_EQ(traced_steps(read("7")).first, 7);
  EXPECT_EQ(traced_steps(read("7")).last, 7);
  const TracedSteps several = traced_steps(read("10-12"));
  EXPECT_TRUE(several.contains(10) && several.contains(12));
  EXPECT_FALSE(several.contains(9) || several.contains(13));
  EXPECT_FALSE(traced_steps(read("")).contains(1));
}

TEST(Trace, StepsThatAreNoneAreRefused) {
  for (const char* steps : {"x", "0", "5-", "-5", "7-3", "1-2-3", "5 "}) {
    const std::vector<LayoutProblem> problems = layout_problems(read(steps), 1);
    ASSERT_EQ(problems.size(), 1u) << steps;
    EXPECT_EQ(problems[0].key, "trace.steps");
    EXPECT_EQ(problems[0].what, cat("\"", steps, "\" names no steps"));
  }
  const std::vector<LayoutProblem> problems = layout_problems(read("19-21"), 1);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].what, "trace.steps ends at 21, but train.steps = 20");
}

}  // namespace
}  // namespace lockstep::config

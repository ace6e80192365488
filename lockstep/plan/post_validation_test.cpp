// Steps that follow each other: with post-validation no rank waits for the last one between them.
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/plan/simulate.h"
#include "lockstep/plan/test_layouts.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::plan {
namespace {

using program::ScheduleKind;

struct Both {
  double alone = 0, following = 0;
};

Both times(const PipelineCase& of, bool post_validation) {
  program::Layout layout = pipeline_layout(of);
  layout.pipeline.post_validation = post_validation;
  const program::Program program = program::build_program(layout);
  const Simulation simulation = simulate(program, layout, unit_times(program, layout));
  return {simulation.use.step_seconds, simulation.period};
}

// Qi et al. 2024, table 1 and section 4: m (F + I + W) and nothing else where the norm keeps nobody; p - 1 forward passes
// more where it does.
TEST(PostValidation, NothingIsIdleBetweenSteps) {
  for (const int p : {2, 3, 4, 8})
    for (const int m : {2 * p, 3 * p}) {
      const PipelineCase zb_h2{.kind = ScheduleKind::kZbH2, .ranks = p, .microbatches = m};
      EXPECT_NEAR(times(zb_h2, true).following, 3 * m, 1e-9) << p << " " << m;
      EXPECT_NEAR(times(zb_h2, false).following, 3 * m + p - 1, 1e-9) << p << " " << m;
      EXPECT_NEAR(times(zb_h2, true).alone, 3 * m + p - 1, 1e-9) << p << " " << m;
      const PipelineCase zb_v{.kind = ScheduleKind::kZbV, .ranks = p, .microbatches = m, .virtual_stages = 2};
      EXPECT_NEAR(times(zb_v, true).following, 6 * m, 1e-9) << p << " " << m;
      EXPECT_GT(times(zb_v, false).following, 6 * m + 0.5) << p << " " << m;
    }
}

// The first rank of 1F1B begins first and ends last: it loses nothing, and there is nothing to win.
TEST(PostValidation, NothingToWin) {
  for (const ScheduleKind kind : {ScheduleKind::kOneFOneB, ScheduleKind::kGPipe, ScheduleKind::kZbH1}) {
    const PipelineCase of{.kind = kind, .ranks = 4, .microbatches = 8};
    EXPECT_NEAR(times(of, true).following, times(of, false).following, 1e-9) << program::schedule_name(kind);
  }
}

}  // namespace
}  // namespace lockstep::plan

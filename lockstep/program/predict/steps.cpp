#include "lockstep/program/predict/steps.h"

#include <algorithm>
#include <utility>

#include "lockstep/program/passes/passes.h"

namespace lockstep::program {
namespace {

MadeStep made(Layout layout, int64_t left_out) {
  layout.global_batch -= left_out * layout.micro_batch * layout.mesh.degree(layout.samples());
  Program program = make_program(layout);
  return {.layout = std::move(layout), .program = std::move(program), .left_out = left_out};
}

}  // namespace

// A grid from a file has the microbatches that it has, and gpipe keeps something of each of them: no part of its step repeats. A
// pipeline fills within twice its stages, and as many microbatches are left once it begins to drain.
JudgedSteps judged_steps(const Layout& layout, int64_t long_step) {
  const int64_t microbatches = layout.num_microbatches(), of_microbatch = 2 * layout.num_layers();
  const int64_t ranks = layout.pipeline.ranks, fitting = long_step / (12 * of_microbatch) / ranks * ranks;
  const int64_t apart = std::max<int64_t>(fitting, 4 * layout.pipeline.stages());
  const ScheduleKind kind = layout.pipeline.kind;
  const bool repeats = ranks == 1 || (kind != ScheduleKind::kFile && kind != ScheduleKind::kGPipe);
  JudgedSteps steps;
  if (microbatches * of_microbatch <= long_step || microbatches < 4 * apart || !repeats) {
    steps.made.push_back(made(layout, 0));
    return steps;
  }
  for (const int64_t times : {1, 2}) steps.made.push_back(made(layout, (microbatches / ranks * ranks) - times * apart));
  return steps;
}

}  // namespace lockstep::program

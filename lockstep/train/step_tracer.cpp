#include "lockstep/train/step_tracer.h"

#include <ATen/ops/tensor.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/drawing.h"

namespace lockstep::train {
namespace {

using Clock = std::chrono::steady_clock;

// One moment for all ranks. Processes of one host share a clock; elsewhere the barrier is as near as it gets.
Clock::time_point common_start(comm::World& world, engine::Groups& groups) {
  groups.world().barrier({.id = program::call_id(program::Purpose::kTrace)}).wait();
  const at::Tensor now = at::tensor({static_cast<int64_t>(Clock::now().time_since_epoch().count())}, at::kLong);
  if (world.backend() == "shared_memory")
    groups.world().broadcast(now, 0, {.id = program::call_id(program::Purpose::kTrace), .algorithm = program::Algorithm::kDirect}).wait();
  return Clock::time_point(Clock::duration(now.item<int64_t>()));
}

}  // namespace

void StepTracer::before(int64_t step) {
  if (steps_.contains(step)) executor_.trace_next_step(common_start(world_, groups_));
}

std::optional<std::string> StepTracer::after(int64_t step) {
  if (!steps_.contains(step)) return std::nullopt;
  plan::StepTrace trace = executor_.take_trace();
  trace.step = step;
  std::filesystem::create_directories(directory_.trace());
  write_file(directory_.trace() / plan::step_trace_name(step, world_.rank()), plan::step_trace_json(trace));
  groups_.world().barrier({.id = program::call_id(program::Purpose::kTrace)}).wait();
  if (world_.rank() != 0) return std::nullopt;
  try {
    return draw(step);
  } catch (const DataError& error) {
    return cat("step ", step, " is not drawn: ", error.what());
  }
}

std::string StepTracer::draw(int64_t step) const {
  const program::Program& program = executor_.program();
  const program::Layout& layout = executor_.layout();
  const std::vector<plan::StepTrace> traces = plan::read_step(directory_.trace(), step, program);
  const plan::Spans spans = plan::measured_spans(program, layout, traces);
  const plan::CallsOfRanks calls = plan::measured_calls(traces);
  const std::filesystem::path chrome = directory_.trace() / cat("step-", step, ".chrome.json");
  write_file(chrome, plan::chrome_trace(program, layout, spans, false, calls));
  if (step != steps_.last) return cat("traced step ", step, ": ", chrome.string());
  plan::ActionTimes times = plan::measured_times(program, layout, spans);
  times.source = cat("measured in step ", step);
  const plan::Simulation simulation = plan::simulate(program, layout, times);
  write_file(directory_.report(), plan::report_html({.program = program,
                                                                .layout = layout,
                                                                .simulation = simulation,
                                                                .times = times,
                                                                .measured = plan::Measured{step, spans, plan::overhead(traces), calls},
                                                                .title = directory_.root().filename().string()}));
  const double measured = plan::utilisation(program, spans).step_seconds;
  return cat("traced step ", step, ": ", format_duration(measured), " measured, ",
             format_duration(simulation.use.step_seconds), " simulated, bubble ",
             number_text(std::round(1000 * simulation.use.bubble()) / 10), " %; ", directory_.report().string());
}

}  // namespace lockstep::train

#include "lockstep/plan/calibrate_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/plan/this_machine.h"
#include "lockstep/plan/test_layouts.h"
#include "lockstep/plan/time/action_seconds.h"
#include "lockstep/program/passes/passes.h"

namespace lockstep::plan {
namespace {

constexpr HostSpeed kSpeed{.flops = 100e9, .memory = 20e9, .latency = 1e-6};

Machine machine_of(int ranks) {
  Machine machine{.cluster = this_machine({.processor = "A CPU", .cores = ranks, .memory = 64e9}, kSpeed, {.ranks = ranks})};
  machine.stack = stack_of(machine.cluster.device, Kernels::kCurrent);
  return machine;
}

// Other constants than the machine's own.
Machine changed(Machine machine) {
  machine.stack.product_cap *= 0.6;
  machine.stack.memory_share *= 1.4;
  machine.stack.attention_forward *= 0.5;
  machine.stack.attention_backward *= 0.8;
  machine.stack.launch *= 3;
  machine.cluster.device.link *= 0.5;
  machine.cluster.device.link_to_one *= 0.5;
  machine.cluster.device.link_latency *= 9;
  return machine;
}

config::RunConfig run_of(int dp, int tp, int pp) {
  config::RunConfig config = small_run();
  config.model.preset = "gpt2-10m";
  config.model.vocab_size = 8192;
  config.train.seq_len = 128;
  config.train.micro_batch = 1;
  config.train.global_batch = 4 * dp;
  config.parallel.tp = tp;
  config.parallel.pp = pp;
  return config;
}

// Traces of steps in which every action takes what the machine says, one after the other as a simulation has them. Waits inside layers are
// one call at the end of their action.
std::vector<StepTrace> traces_of(const program::Layout& layout, const program::Program& program, const Machine& machine, int64_t step, double slower) {
  const Placement placement(machine.cluster, layout.mesh);
  const EstimateOptions options{.traffic = false};
  ActionTimes times;
  std::vector<std::vector<double>> waits;
  for (int rank = 0; rank < program.world_size(); ++rank) {
    ActionSeconds seconds(layout, program, placement, machine.stack, options, rank);
    times.seconds.emplace_back();
    waits.emplace_back();
    for (const program::Action& action : program.list(rank)) {
      const ActionTime time = seconds.of(action);
      times.seconds.back().push_back(slower * (program::computes(action.kind) || time.network == 0 ? time.seconds : time.network));
      waits.back().push_back(slower * (time.work.tensor + time.work.context + time.work.experts));
    }
  }
  const Simulation simulation = simulate(program, layout, times);
  std::vector<StepTrace> traces;
  for (int rank = 0; rank < program.world_size(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    StepTrace& trace = traces.emplace_back(StepTrace{.step = step, .rank = rank, .world_size = program.world_size(),
                                                     .actions = static_cast<int>(program.list(rank).size())});
    for (int i = 0; i < trace.actions; ++i) {
      const Span& span = simulation.spans[at][static_cast<size_t>(i)];
      trace.records.push_back({i, span.start, span.end});
      const double waited = waits[at][static_cast<size_t>(i)];
      if (waited > 0) trace.calls.push_back({i, "a call", span.end - waited, span.end, waited});
    }
  }
  return traces;
}

struct Case {
  int dp, tp, pp;
};

TEST(CalibrateRun, RecoversTheConstantsOfSyntheticSteps) {
  for (const Case& of : {Case{1, 1, 1}, Case{2, 1, 1}, Case{1, 2, 1}, Case{1, 1, 2}}) {
    SCOPED_TRACE(testing::Message() << "dp " << of.dp << " tp " << of.tp << " pp " << of.pp);
    const int ranks = of.dp * of.tp * of.pp;
    const program::Layout layout = layout_of(run_of(of.dp, of.tp, of.pp), ranks);
    const program::Program program = program::make_program(layout);
    const Machine start = machine_of(ranks), truth = changed(start);
    // The first step warms up.
    const TracedRun run = traced_run(layout, program, {traces_of(layout, program, truth, 3, 5), traces_of(layout, program, truth, 4, 1),
                                                       traces_of(layout, program, truth, 5, 1)});
    EXPECT_THAT(run.steps, testing::ElementsAre(4, 5));
    const Calibration found = calibrate_run(run, start, "runs/x");
    EXPECT_LT(found.median_error, 0.005) << calibration_text(found);
    EXPECT_NEAR(found.total_error, 0, 0.005) << calibration_text(found);
    // What the constants say of another step of this machine is what the truth says, whether or not they can be told apart.
    const std::vector<double> said = machine_model(run)(found.machine), right = machine_model(run)(truth);
    double all = 0, off = 0;
    const std::vector<Observation> observed = observations(run);
    for (size_t i = 0; i < said.size(); ++i) {
      all += right[i] * observed[i].times;
      off += std::abs(said[i] - right[i]) * observed[i].times;
    }
    EXPECT_LT(off / all, 0.01);
    EXPECT_NEAR(found.machine.stack.memory_share / truth.stack.memory_share, 1, 0.1);
    EXPECT_THAT(found.machine.stack.origins.at("memory_share"), testing::HasSubstr("runs/x, steps 4, 5"));
  }
}

TEST(CalibrateRun, MeasuresTheStep) {
  const program::Layout layout = layout_of(run_of(1, 1, 2), 2);
  const program::Program program = program::make_program(layout);
  const Machine machine = machine_of(2);
  const auto one = traces_of(layout, program, machine, 7, 1), other = traces_of(layout, program, machine, 8, 1.5);
  const double first = utilisation(program, measured_spans(program, layout, one)).step_seconds;
  EXPECT_NEAR(traced_run(layout, program, {one}).step_seconds, first, 1e-9 * first);
  EXPECT_NEAR(traced_run(layout, program, {one, one, other}).step_seconds, 1.25 * first, 1e-6 * first) << "the median of the last two";
}

TEST(CalibrateRun, RefusesARunWithoutTraces) {
  const std::filesystem::path run = std::filesystem::path(testing::TempDir()) / "calibrate_run";
  std::filesystem::create_directories(run / "trace");
  write_file(run / "config.resolved.toml", "");
  EXPECT_THROW(read_traced_run(run), ConfigError);
}

}  // namespace
}  // namespace lockstep::plan

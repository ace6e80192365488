#include "lockstep/plan/calibrate_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/this_machine.h"
#include "lockstep/plan/test_layouts.h"
#include "lockstep/plan/time/action_seconds.h"
#include "lockstep/plan/time/step_estimate.h"
#include "lockstep/program/passes/passes.h"

namespace lockstep::plan {
namespace {

constexpr HostSpeed kSpeed{.flops = 100e9, .memory = 20e9, .latency = 1e-6};

const HostFacts kFacts{.processor = "A CPU", .cores = 2, .memory = 64e9};

HostMachine host_of(const MachineRanks& ranks) {
  HostMachine host{.machine = {.cluster = this_machine(kFacts, kSpeed, ranks)}, .host = host_share(kFacts, kSpeed, ranks)};
  host.machine.stack = stack_of(host.machine.cluster.device, Kernels::kCurrent);
  return host;
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
      times.seconds.back().push_back(slower * (time.seconds + (program::computes(action.kind) ? 0 : time.network)));
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
    const HostMachine start = host_of({.ranks = ranks});
    const Machine truth = changed(start.machine);
    // The first step warms up.
    const TracedRun run = traced_run(layout, program, {traces_of(layout, program, truth, 3, 5), traces_of(layout, program, truth, 4, 1),
                                                       traces_of(layout, program, truth, 5, 1)});
    EXPECT_THAT(run.steps, testing::ElementsAre(4, 5));
    const Calibration found = calibrate_runs({{"runs/x", run}}, start).calibration;
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
  const Machine machine = host_of({.ranks = 2}).machine;
  const auto one = traces_of(layout, program, machine, 7, 1), other = traces_of(layout, program, machine, 8, 1.5);
  const double first = utilisation(program, measured_spans(program, layout, one)).step_seconds;
  EXPECT_NEAR(traced_run(layout, program, {one}).step_seconds, first, 1e-9 * first);
  EXPECT_NEAR(traced_run(layout, program, {one, one, other}).step_seconds, 1.25 * first, 1e-6 * first) << "the median of the last two";
}

// Runs of one and of two ranks, of which neither has all constants: steps of a third layout are said as the truth says them.
TEST(CalibrateRun, SeveralRunsOfOtherRanksTellMore) {
  const HostMachine start = host_of({.ranks = 2});
  const HostMachine truth{.machine = changed(start.machine), .host = start.host};
  std::vector<NamedRun> runs;
  for (const Case& of : {Case{1, 1, 1}, Case{2, 1, 1}}) {
    const MachineRanks ranks{.ranks = of.dp, .threads = 0};
    const program::Layout layout = layout_of(run_of(of.dp, of.tp, of.pp), ranks.ranks);
    const program::Program program = program::make_program(layout);
    NamedRun& named = runs.emplace_back(NamedRun{cat("runs/", of.dp), traced_run(layout, program, {traces_of(layout, program, with_ranks(truth, ranks).machine, 4, 1)})});
    named.run.ranks = ranks;
  }
  const HostCalibration found = calibrate_runs(runs, start);
  EXPECT_LT(found.calibration.median_error, 0.005) << calibration_text(found.calibration);
  EXPECT_THAT(found.machine.machine.stack.origins.at("memory_share"), testing::HasSubstr("runs/1, step 4; runs/2, step 4"));
  const program::Layout layout = layout_of(run_of(1, 1, 2), 2);
  const auto seconds = [&](const Machine& machine) { return estimate_step(layout, machine.cluster, machine.stack, {.traffic = false}).seconds; };
  EXPECT_NEAR(seconds(found.machine.machine) / seconds(truth.machine), 1, 0.02);
}

// A collective runs beside what its ranks compute, on their cores: for that time both have half of them.
TEST(CalibrateRun, WhatSharesCoresCountsAsAlone) {
  const program::Layout layout = layout_of(run_of(2, 1, 1), 2);
  const program::Program program = program::make_program(layout);
  const Machine machine = host_of({.ranks = 2}).machine;
  const auto traces = traces_of(layout, program, machine, 7, 1);
  const Spans measured = measured_spans(program, layout, traces);
  const TracedRun apart = traced_run(layout, program, {traces}), shared = traced_run(layout, program, {traces}, true);
  double computes = 0, less = 0, calls = 0, shorter = 0, beside = 0;
  for (size_t i = 0; i < program.list(0).size(); ++i) {
    const bool is_call = match(program, layout).meeting_of[0][i] >= 0;
    (is_call ? calls : computes) += apart.work.seconds[0][i];
    (is_call ? shorter : less) += apart.work.seconds[0][i] - shared.work.seconds[0][i];
    if (!is_call) continue;
    for (size_t j = 0; j < program.list(0).size(); ++j)
      if (program::computes(program.list(0)[j].kind))
        beside += std::max(0.0, std::min(measured[0][i].end, measured[0][j].end) - std::max(measured[0][i].start, measured[0][j].start));
  }
  EXPECT_GT(beside, 0);
  EXPECT_NEAR(shorter, beside / 2, 0.02 * calls);
  EXPECT_NEAR(less, beside / 2, 0.02 * computes);
}

TEST(CalibrateRun, RefusesARunWithoutTraces) {
  const std::filesystem::path run = std::filesystem::path(testing::TempDir()) / "calibrate_run";
  std::filesystem::create_directories(run / "trace");
  write_file(run / "config.resolved.toml", "");
  EXPECT_THROW(read_traced_run(run), ConfigError);
}

}  // namespace
}  // namespace lockstep::plan

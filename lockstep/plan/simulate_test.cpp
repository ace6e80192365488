#include "lockstep/plan/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cost_file.h"
#include "lockstep/plan/test_layouts.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/test_experts.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::plan {
namespace {

using program::Action;
using program::ActionKind;
using program::ScheduleKind;

Simulation simulated(const PipelineCase& of) {
  const program::Program program = stage_program(of);
  const program::Layout layout = pipeline_layout(of);
  return simulate(program, layout, unit_times(program, layout));
}

// Every action begins when the one before it in the path ends, and the path reaches the end of the step.
void expect_unbroken(const Simulation& simulation) {
  ASSERT_FALSE(simulation.critical_path.empty());
  double time = 0;
  for (const ActionRef& ref : simulation.critical_path) {
    const Span& span = simulation.spans[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
    EXPECT_NEAR(span.start, time, 1e-9);
    time = span.end;
  }
  EXPECT_NEAR(time, simulation.use.step_seconds, 1e-9);
}

// Huang et al. 2019, Narayanan et al. 2021: (p - 1)(F + B) idle beside m (F + B) of work; one microbatch at a time: p - 1 of
// p ranks idle.
TEST(Simulate, EqualStages) {
  for (int p : {1, 2, 3, 4, 8}) {
    for (int m : {1, p, 2 * p, 4 * p}) {
      for (ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::kOneFOneB}) {
        const Simulation simulation = simulated({.kind = kind, .ranks = p, .microbatches = m});
        EXPECT_NEAR(simulation.use.step_seconds, 3.0 * (m + p - 1), 1e-9);
        EXPECT_NEAR(simulation.use.bubble(), static_cast<double>(p - 1) / (m + p - 1), 1e-9);
        expect_unbroken(simulation);
      }
      const Simulation naive = simulated({.kind = ScheduleKind::kNaive, .ranks = p, .microbatches = m});
      EXPECT_NEAR(naive.use.step_seconds, 3.0 * m * p, 1e-9);
      EXPECT_NEAR(naive.use.idle(p - 1), 1 - 1.0 / p, 1e-9);
    }
  }
}

// 1F1B over two ranks, two microbatches, by hand: rank 1 waits for F0, rank 0 for the gradients.
TEST(Simulate, ByHand) {
  const Simulation simulation = simulated({.ranks = 2, .microbatches = 2});
  const auto starts = [&](size_t rank) {
    std::vector<double> starts;
    for (const Span& span : simulation.spans[rank]) starts.push_back(span.start);
    return starts;
  };
  EXPECT_THAT(starts(0), testing::ElementsAre(0, 1, 4, 7));  // F0 F1 B0 B1
  EXPECT_THAT(starts(1), testing::ElementsAre(1, 2, 4, 5));  // F0 B0 F1 B1
}

// A slow stage: everything waits for it, and it has no bubble but the first and last ranks' fill and drain.
TEST(Simulate, TheSlowestStageSetsThePace) {
  const PipelineCase of{.ranks = 3, .microbatches = 16};
  const program::Layout layout = pipeline_layout(of);
  const program::Program program =
      program::transfer_activations(program::expand_layers(program::schedule(layout), layout), layout);
  const StepCosts costs = parse_costs("[forward]\nstages = [1, 2, 1]\n[input]\nstages = [1, 2, 1]\n[weight]\nstages = [1, 2, 1]\n",
                                      "costs", layout);
  const Simulation simulation = simulate(program, layout, cost_times(program, layout, costs));
  EXPECT_NEAR(simulation.use.busy[1], 16 * 6, 1e-9);
  EXPECT_NEAR(simulation.use.step_seconds, 16 * 6 + 1 + 2 + (1 + 2 - 1) - 0.0, 2.0);
  EXPECT_GT(simulation.use.idle(0), 0.4);
  EXPECT_LT(simulation.use.idle(1), 0.06);
  expect_unbroken(simulation);
}

TEST(Simulate, LayersAndTransfersGiveTheSameAsStages) {
  for (ScheduleKind kind : {ScheduleKind::kNaive, ScheduleKind::kGPipe, ScheduleKind::kOneFOneB}) {
    const PipelineCase of{.kind = kind, .ranks = 4, .microbatches = 8};
    const program::Layout layout = pipeline_layout(of);
    const program::Program layers =
        program::transfer_activations(program::expand_layers(program::schedule(layout), layout), layout);
    const Simulation simulation = simulate(layers, layout, unit_times(layers, layout));
    EXPECT_NEAR(simulation.use.step_seconds, simulated(of).use.step_seconds, 1e-9);
    EXPECT_NEAR(simulation.use.bubble(), simulated(of).use.bubble(), 1e-9);
    expect_unbroken(simulation);
  }
}

// One microbatch down the pipeline and back pays every transfer twice.
TEST(Simulate, TransfersTakeTheirTime) {
  const PipelineCase of{.kind = ScheduleKind::kGPipe, .ranks = 3, .microbatches = 1};
  const program::Layout layout = pipeline_layout(of);
  const program::Program program =
      program::transfer_activations(program::expand_layers(program::schedule(layout), layout), layout);
  const double bytes = 4.0 * 16 * static_cast<double>(layout.model.hidden);
  const StepCosts costs = parse_costs(cat("[transfer]\nlatency = 0.25\nbandwidth = ", bytes / 0.5, "\n"), "costs", layout);
  const Simulation simulation = simulate(program, layout, cost_times(program, layout, costs));
  EXPECT_NEAR(simulation.use.step_seconds, 4 * 0.75, 1e-6);
  expect_unbroken(simulation);
}

// Two microbatches in turns end together. Where exchanges take no time, that costs what docs/parallelism/expert-parallel.md says.
TEST(Simulate, TurnsCostAFewPassesAStep) {
  for (const int pp : {2, 4})
    for (const auto& [kind, price] : {std::pair(ScheduleKind::kInterleaved, 0), {ScheduleKind::kZbV, 2 * pp - 3}, {ScheduleKind::kDualPipeV, pp - 1}}) {
      program::Layout layout = program::layout_of(
          {.replicate = 2, .pp = pp, .ep = 2, .microbatches = 16, .schedule = kind, .virtual_stages = 2});
      const auto seconds = [&](bool overlap) {
        layout.overlap_experts = overlap;
        const program::Program program = program::make_program(layout);
        EXPECT_EQ(std::ranges::any_of(program.list(0), [](const program::Action& action) { return program::exchanges(action.kind); }), overlap);
        return simulate(program, layout, unit_times(program, layout)).use.pipeline_seconds;
      };
      EXPECT_LE(seconds(true), seconds(false) + price + 1e-6) << program::schedule_name(kind) << " pp " << pp;
    }
}

// Calls between ranks of experts inside of F and B take their time; as actions, another microbatch's work runs meanwhile, and so do sums of
// gradients, on their own channel.
TEST(Simulate, ExchangesRunBesideAnotherMicrobatch) {
  program::Layout divided = program::layout_of({.replicate = 2, .ep = 2, .microbatches = 8});
  program::Layout whole = divided;
  divided.overlap_experts = true;
  const StepCosts costs = parse_costs("[forward]\nblock = 1\n[input]\nblock = 1\n[weight]\nblock = 1\n[collective]\nlatency = 0.05\n", "costs", whole);
  const auto run = [&](const program::Layout& layout) {
    const program::Program program = program::make_program(layout);
    return simulate(program, layout, cost_times(program, layout, costs));
  };
  const Simulation beside = run(divided), inside = run(whole);
  const double work = 8 * 4 * 3.0, exchanges = 8 * 4 * 4 * 0.05;
  EXPECT_GE(beside.use.step_seconds, work);
  EXPECT_GE(inside.use.step_seconds, work + exchanges);
  EXPECT_LE(beside.use.step_seconds, inside.use.step_seconds - 0.6 * exchanges) << "all but those of the first F and the last B";
  expect_unbroken(beside);
}

// Without pipelines: collectives wait for all their ranks, what uses them waits for these.
TEST(Simulate, EveryProgramOfTheLibrary) {
  for (int zero : {0, 1, 2, 3}) {
    program::Layout layout = pipeline_layout({.ranks = 1, .microbatches = 4});
    mesh::PerAxis degrees = mesh::PerAxis::ones();
    degrees[zero == 0 ? mesh::Axis::kDpReplicate : mesh::Axis::kDpShard] = 4;
    layout.mesh = mesh::Mesh(degrees);
    layout.zero = zero;
    layout.global_batch = 8;
    layout.bucket_bytes = 0;
    const program::Program program = program::build_program(layout);
    const StepCosts free = parse_costs("[forward]\nblock = 1\n[input]\nblock = 1\n[weight]\nblock = 1\n", "costs", layout);
    StepCosts paid = free;
    paid.collective.latency = 0.125;
    const Simulation ideal = simulate(program, layout, cost_times(program, layout, free));
    const Simulation real = simulate(program, layout, cost_times(program, layout, paid));
    EXPECT_NEAR(ideal.use.step_seconds, 6, 1e-9);  // two microbatches of one block
    EXPECT_GT(real.use.step_seconds, 6.125) << "zero " << zero;
    EXPECT_LT(real.use.step_seconds, 12) << "zero " << zero;
    expect_unbroken(real);
  }
}

TEST(Simulate, ACircleIsNamed) {
  const PipelineCase of{.ranks = 2, .microbatches = 1};
  program::Program program = stage_program(of);
  const auto swap_first = [&](int rank) {
    std::vector<program::Action>& list = own_list(program, rank);
    std::swap(list[0], list[1]);
  };
  swap_first(1);  // B before its F: rank 0 waits for it, it for nobody
  swap_first(0);
  const program::Layout layout = pipeline_layout(of);
  EXPECT_NO_THROW(simulate(program, layout, unit_times(program, layout)));
  program = stage_program(of);
  swap_first(0);  // B waits for rank 1, which waits for F
  EXPECT_THROW(simulate(program, layout, unit_times(program, layout)), InternalError);
}

// The others would meet without it.
TEST(Simulate, ACallThatARankLeavesOutIsNamed) {
  program::Layout layout = pipeline_layout({.ranks = 1, .microbatches = 4});
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kDpReplicate] = 2;
  layout.mesh = mesh::Mesh(degrees);
  program::Program program = program::build_program(layout);
  EXPECT_NO_THROW(simulate(program, layout, unit_times(program, layout)));
  EXPECT_EQ(std::erase_if(own_list(program, 1), [](const Action& action) { return program::sums_losses(action.kind); }), 1u);
  EXPECT_THROW(simulate(program, layout, unit_times(program, layout)), InternalError);
}

TEST(Simulate, ManyStages) {
  const PipelineCase of{.ranks = 256, .microbatches = 512};
  const program::Program program = stage_program(of);
  const program::Layout layout = pipeline_layout(of);
  EXPECT_NEAR(simulate(program, layout, unit_times(program, layout)).use.step_seconds, 3 * (512 + 255), 1e-6);
}

TEST(CostFile, SaysWhatIsWrong) {
  const program::Layout layout = pipeline_layout({.ranks = 2, .microbatches = 2});
  const auto refusal = [&](const char* text) -> std::string {
    try {
      parse_costs(text, "costs.toml", layout);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal("[foward]\nblock = 1\n"), testing::HasSubstr("costs.toml:1:"));
  EXPECT_THAT(refusal("[forward]\nblok = 1\n"), testing::HasSubstr("unknown key 'forward.blok'"));
  EXPECT_THAT(refusal("[forward]\nblock = \"1ms\"\n"), testing::HasSubstr("forward.block is not a number of 0 or more"));
  EXPECT_THAT(refusal("[forward]\nblock = -1\n"), testing::HasSubstr("LS1084"));
  EXPECT_THAT(refusal("[forward]\nlayers = [1, 2]\n"), testing::HasSubstr("has 2 numbers, and the layout has 4 layers"));
  EXPECT_THAT(refusal("[forward]\nstages = [1, 2]\nblock = 1\n"), testing::HasSubstr("in several ways"));
  EXPECT_THAT(refusal("[forward\n"), testing::HasSubstr("LS1084"));
  EXPECT_EQ(refusal("[forward]\nblock = 1e-3\n[transfer]\nbandwidth = 1e9\nlatency = 1e-6\n[update]\nstep = 1\n"), "accepted");
}

}  // namespace
}  // namespace lockstep::plan

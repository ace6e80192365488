#include "lockstep/plan/time/step_walk.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/time/test_times.h"

namespace lockstep::plan {
namespace {

using namespace test_times;

using program::Action;
using program::ActionKind;
using program::ScheduleKind;

StepWalk walked(const PipelineCase& of, const StageTimes& times = {}) {
  const program::Layout layout = pipeline_layout(of);
  return walk_step(layout, program::make_program(layout), stage_times(layout, times));
}

// Of the rank that has most: idle time between the first and the last action.
double bubble_of(const StepWalk& walk) {
  double most = 0;
  for (const RankWalk& rank : walk.ranks) most = std::max(most, rank.last - rank.first - rank.spent.products);
  return most;
}

std::string name(const PipelineCase& of) {
  return cat(program::schedule_name(of.kind), ", ", of.ranks, " ranks x ", of.virtual_stages, ", ", of.microbatches, " microbatches");
}

// Of p ranks, stages of F, I and W; of several stages a rank each is one of them (Huang et al. 2019; Narayanan et al. 2021; Qi et al. 2023, 2024).
double closed_form(const PipelineCase& of, const StageTimes& times) {
  const double p = of.ranks, forward = times.forward, input = times.input, weight = times.weight;
  switch (of.kind) {
    case ScheduleKind::kZbH1: return (p - 1) * std::max(0.0, forward + input - weight);
    case ScheduleKind::kZbH2: return (p - 1) * std::max(0.0, forward + input - 2 * weight);
    case ScheduleKind::kZbV: return 0;
    default: return (p - 1) * times.all();
  }
}

TEST(StepWalk, BubblesAreThoseOfTheClosedForms) {
  int cases = 0;
  constexpr ScheduleKind kKinds[] = {ScheduleKind::kGPipe, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved,
                                     ScheduleKind::kZbH1,  ScheduleKind::kZbH2,     ScheduleKind::kZbV};
  for (const ScheduleKind kind : kKinds)
    for (const int p : {2, 4, 8})
      for (const int rounds : {2, 4}) {
        PipelineCase of{.kind = kind, .ranks = p, .microbatches = rounds * p};
        of.virtual_stages = kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kZbV ? 2 : 1;
        const StageTimes times{};
        const StepWalk walk = walked(of, times);
        EXPECT_NEAR(bubble_of(walk), closed_form(of, times), 1e-9) << name(of);
        for (const RankWalk& rank : walk.ranks) EXPECT_NEAR(rank.spent.products, times.all() * of.microbatches * of.virtual_stages, 1e-9) << name(of);
        ++cases;
      }
  EXPECT_EQ(cases, 36);
}

// The step of those that begin and end together on the first rank, whatever the times.
TEST(StepWalk, StepsOfEqualStages) {
  const StageTimes times{.forward = 2, .input = 1.5, .weight = 1};
  for (const int p : {2, 4, 8})
    for (const int m : {p, 3 * p}) {
      for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::kOneFOneB})
        EXPECT_NEAR(walked({.kind = kind, .ranks = p, .microbatches = m}, times).seconds, (m + p - 1) * times.all(), 1e-9);
      for (const int v : {2, 3}) {
        const StepWalk walk = walked({.kind = ScheduleKind::kInterleaved, .ranks = p, .microbatches = m, .virtual_stages = v}, times);
        EXPECT_NEAR(walk.seconds, (m * v + p - 1) * times.all(), 1e-9);
      }
      EXPECT_NEAR(walked({.kind = ScheduleKind::kZbH1, .ranks = p, .microbatches = m}, times).seconds, m * times.all() + (p - 1) * (2 + 1.5 - 1), 1e-9);
    }
}

TEST(StepWalk, WhatEachSecondWentToAddsUpToTheStep) {
  for (const ScheduleKind kind : {ScheduleKind::kOneFOneB, ScheduleKind::kZbH1, ScheduleKind::kZbV}) {
    const StepWalk walk = walked({.kind = kind, .ranks = 4, .microbatches = 8, .virtual_stages = kind == ScheduleKind::kZbV ? 2 : 1});
    for (const RankWalk& rank : walk.ranks) EXPECT_NEAR(rank.spent.sum(), walk.seconds, 1e-9);
  }
}

// 1F1B over p ranks under way: a microbatch goes down and comes back, p - 1 sends each way, while p of them are in flight. So a microbatch waits
// for 2 (p - 1) / p sends.
TEST(StepWalk, SendsOfOneFOneBAreWaitedFor) {
  const double send = 0.1;
  for (const int p : {2, 4, 8}) {
    const auto seconds = [&](int microbatches) {
      const PipelineCase of{.ranks = p, .microbatches = microbatches};
      const program::Layout layout = pipeline_layout(of);
      const TimeOfAction compute = stage_times(layout, {});
      return walk_step(layout, program::make_program(layout), [&](int stage, const Action& action) {
               ActionTime time = compute(stage, action);
               if (program::is_transfer(action.kind) && program::transfer_of(action).sends) time.network = send;
               return time;
             }).seconds;
    };
    EXPECT_NEAR((seconds(8 * p) - seconds(4 * p)) / (4 * p), 3 + 2 * send * (p - 1) / p, 1e-9) << p;
  }
}

// Blocking sends: a rank in the middle computes nothing while either of its two goes.
TEST(StepWalk, ASenderThatWaitsComputesNothingMeanwhile) {
  const double send = 0.1;
  const auto seconds = [&](int microbatches) {
    const program::Layout layout = pipeline_layout({.ranks = 4, .microbatches = microbatches});
    const TimeOfAction compute = stage_times(layout, {});
    return walk_step(layout, program::make_program(layout), [&](int stage, const Action& action) {
             ActionTime time = compute(stage, action);
             if (!program::is_transfer(action.kind) || !program::transfer_of(action).sends) return time;
             time.network = send;
             time.exposed = 1;
             time.term = &Breakdown::pipeline;
             return time;
           }).seconds;
  };
  EXPECT_NEAR((seconds(32) - seconds(16)) / 16, 3 + 2 * send, 1e-9);
}

// Of interleaved stages they are hidden but for filling and draining.
TEST(StepWalk, SendsOfInterleavedStagesAreHidden) {
  const auto seconds = [&](int microbatches, double send) {
    const PipelineCase of{.kind = ScheduleKind::kInterleaved, .ranks = 4, .microbatches = microbatches, .virtual_stages = 2};
    const program::Layout layout = pipeline_layout(of);
    const TimeOfAction compute = stage_times(layout, {});
    return walk_step(layout, program::make_program(layout), [&](int stage, const Action& action) {
             ActionTime time = compute(stage, action);
             if (program::is_transfer(action.kind) && program::transfer_of(action).sends) time.network = send;
             return time;
           }).seconds;
  };
  EXPECT_NEAR((seconds(64, 0.1) - seconds(32, 0.1)) / 32, 6, 0.1);
}

// Zero 3 over four ranks, blocks alone take time. Gathering ahead, forward takes g + (L - 1) max(f, g) + f.
struct Gathered {
  double step = 0;
  Breakdown spent{};
};
Gathered zero3(double gather, double forward, bool ahead = true) {
  const program::Layout layout = small_layout({.preset = "gpt2-test", .ranks = 4, .layers = 12}, [&](config::RunConfig& config) {
    config.parallel.zero = 3;
    config.parallel.prefetch = ahead ? 1 : 0;
    config.train.precision = config::Precision::kFp32;  // one unit a layer
    config.train.micro_batch = 4;
    config.memory.recompute.list = {};
    config.memory.recompute.list = {config::Recompute::kNone};
  });
  const program::Program program = program::evaluation_program(layout);
  const auto is_block = [&](int layer) { return layer > 0 && layer < layout.num_layers() - 1; };
  const StepWalk walk = walk_step(layout, program, [&](int, const Action& action) {
    ActionTime time;
    if (action.kind == ActionKind::kUnshard && is_block(layout.layer_of(action.unit))) time.network = gather;
    if (action.kind == ActionKind::kForward && is_block(action.layer)) time.seconds = time.work.products = forward;
    return time;
  });
  return {.step = walk.seconds, .spent = walk.ranks[0].spent};
}

TEST(StepWalk, GathersAreHiddenOrExposed) {
  constexpr double kLayers = 12;
  for (const double gather : {0.25, 1.0, 3.0}) {
    const Gathered walk = zero3(gather, 1);
    EXPECT_NEAR(walk.step, gather + (kLayers - 1) * std::max(1.0, gather) + 1, 1e-9) << gather;
    EXPECT_NEAR(walk.spent.data, walk.step - kLayers, 1e-9);
    EXPECT_NEAR(zero3(gather, 1, false).step, kLayers * (1 + gather), 1e-9) << "without gathering ahead, " << gather;
  }
}

TEST(StepWalk, OneDeviceTakesTheSumOfItsActions) {
  const program::Layout layout = small_layout();
  const program::Program program = program::make_program(layout);
  double sum = 0, next = 1;
  std::map<Action, double> times;
  for (const Action& action : program.list(0)) {
    const auto [entry, fresh] = times.try_emplace(program::without_microbatch(action), next);
    if (fresh) next *= 1.1;
    sum += entry->second;
  }
  const StepWalk walk = walk_step(layout, program, [&](int, const Action& action) {
    ActionTime time;
    time.seconds = time.work.pointwise = times.at(action);
    return time;
  });
  EXPECT_NEAR(walk.seconds, sum, 1e-9 * sum);
  EXPECT_NEAR(walk.ranks[0].spent.pointwise, sum, 1e-9 * sum);
}

// Gathers behind the update run beside the next step's forward: what a step takes is from its end to the end of the next.
TEST(StepWalk, WhatIsStillOnItsWayAtTheEndRunsBesideTheNextStep) {
  const program::Layout layout = small_layout({.ranks = 4}, [](config::RunConfig& config) { config.parallel.zero = 1; });
  const program::Program program = program::make_program(layout);
  const auto seconds = [&](double gather) {
    return walk_step(layout, program, [&](int, const Action& action) {
             ActionTime time;
             if (action.kind == ActionKind::kUnshard) time.network = gather;
             if (program::computes(action.kind)) time.seconds = time.work.products = 1;
             return time;
           }).seconds;
  };
  const double work = seconds(0);
  EXPECT_NEAR(seconds(0.1), work + 0.1, 0.11);  // the first layer's alone
  EXPECT_GT(seconds(100), work + 100);
}

TEST(StepWalk, CollectivesOfAllStagesBeginWithTheLastOfThem) {
  const PipelineCase of{.ranks = 3, .microbatches = 3};
  const program::Layout layout = pipeline_layout(of);
  const TimeOfAction compute = stage_times(layout, {});
  const StepWalk walk = walk_step(layout, program::make_program(layout), [&](int stage, const Action& action) {
    ActionTime time = compute(stage, action);
    if (action.kind != ActionKind::kNorm) return time;
    time.network = 0.5;
    time.stages = 3;
    return time;
  });
  EXPECT_NEAR(walk.seconds, (3 + 2) * 3 + 0.5, 1e-9);
  for (const RankWalk& rank : walk.ranks) EXPECT_NEAR(rank.spent.data, 0.5, 1e-9);
}

// A tied embedding with an update that goes ahead of the norm: the last stage adds its gradient before it hands back the microbatch that the first
// needs for its own, so whoever comes first goes on. The sum begins with the last backward pass of the first stage and ends with it at the earliest.
TEST(StepWalk, ACollectiveOfStagesThatIsNotWaitedForLetsThemGoOn) {
  PipelineCase of{.kind = ScheduleKind::kZbH1, .ranks = 2, .microbatches = 4};
  program::Layout layout = pipeline_layout(of);
  layout.pipeline.post_validation = true;
  const TimeOfAction compute = stage_times(layout, {});
  const auto seconds = [&](double sum) {
    return walk_step(layout, program::make_program(layout), [&](int stage, const Action& action) {
             ActionTime time = compute(stage, action);
             if (action.kind != ActionKind::kReduceTied) return time;
             time.network = sum;
             time.stages = 2;
             return time;
           }).seconds;
  };
  EXPECT_NEAR(seconds(0.5), seconds(0) + 0.5, 1e-9);
  EXPECT_GE(seconds(0), 4 * 3);
}

// Ranks that share cores: with one core the step is all work, one after the other; with as many as ranks nothing changes; in between no longer than
// a greedy order of any work (Graham 1966): work / cores + (1 - 1 / cores) x the longest chain.
TEST(StepWalk, RanksThatShareCoresTakeTurns) {
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::kOneFOneB, ScheduleKind::kZbH1}) {
    const PipelineCase of{.kind = kind, .ranks = 4, .microbatches = 8};
    const program::Layout layout = pipeline_layout(of);
    const program::Program program = program::make_program(layout);
    const auto seconds = [&](int computing) { return walk_step(layout, program, stage_times(layout, {}), {.computing = computing}).seconds; };
    const double work = 4 * 8 * 3, chain = seconds(0);
    EXPECT_NEAR(seconds(1), work, 1e-9) << name(of);
    EXPECT_EQ(seconds(4), chain) << name(of);
    for (const int cores : {2, 3}) {
      EXPECT_GE(seconds(cores), std::max(work / cores, chain) - 1e-9) << name(of);
      EXPECT_LE(seconds(cores), work / cores + (1 - 1.0 / cores) * chain + 1e-9) << name(of);
    }
  }
}

TEST(StepWalk, BoxesLieInTheStepAndComputingDoesNotOverlap) {
  const PipelineCase of{.ranks = 3, .microbatches = 6};
  const program::Layout layout = pipeline_layout(of);
  const TimeOfAction compute = stage_times(layout, {});
  const StepWalk walk = walk_step(
      layout, program::make_program(layout),
      [&](int stage, const Action& action) {
        ActionTime time = compute(stage, action);
        if (program::is_transfer(action.kind) && program::transfer_of(action).sends) time.network = 0.2, time.over_nics = true;
        return time;
      },
      {.boxes = true});
  std::map<int, std::vector<TimedBox>> computing;
  size_t sends = 0;
  for (const TimedBox& box : walk.boxes) {
    EXPECT_GE(box.start, 0);
    EXPECT_LE(box.end, walk.seconds + 1e-9);
    EXPECT_LT(box.start, box.end);
    if (box.lane == 'c') computing[box.stage].push_back(box);
    if (box.lane == 'n') ++sends;
  }
  EXPECT_EQ(sends, 6U * 2 * 2);
  for (auto& [stage, boxes] : computing) {
    EXPECT_EQ(boxes.size(), 12U) << "F and B of each microbatch, whatever its layers";
    for (size_t i = 1; i < boxes.size(); ++i) EXPECT_LE(boxes[i - 1].end, boxes[i].start + 1e-9);
  }
}

TEST(StepWalk, CirclesOfWaitingAreToldNotWalked) {
  const program::Layout layout = pipeline_layout({.ranks = 2, .microbatches = 2});
  program::Program program = program::make_program(layout);
  std::erase_if(program.lists[program.list_index(0)], [](const Action& action) { return action.kind == ActionKind::kSendForward; });
  EXPECT_THROW(walk_step(layout, program, stage_times(layout, {})), InternalError);
}

}  // namespace
}  // namespace lockstep::plan

// The reference test of expert parallelism: every layout against one rank that has all experts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/engine/test_experts.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::engine {
namespace {

using arch::Recompute;
using testing::Case;
using testing::expect_twin;
using testing::experts;
using testing::kExpertBatch;
using testing::layout_for;
using testing::microbatches;

TEST(Experts, SharedOverRanksOfOtherSamples) {
  for (const auto& [dp, ep] : {std::pair{2, 2}, {4, 4}, {4, 2}, {2, 1}})
    for (const bool overlap : {true, false}) expect_twin(experts({.dp = dp, .overlap = overlap, .dropout = 0.1, .ep = ep}));
}

// With etp 1 the ranks of tp hold the same experts or others of them, and each routes its own rows. 15 rows do not divide by 2.
TEST(Experts, BesideTensorParallelism) {
  for (const bool sequence_parallel : {true, false})
    for (const auto& [dp, tp, ep] : {std::tuple{1, 2, 1}, {1, 2, 2}, {2, 2, 2}, {2, 2, 4}, {1, 4, 2}})
      for (const int64_t seq_len : {16, 15})
        expect_twin(experts({.dp = dp, .seq_len = seq_len, .dropout = 0.1, .tp = tp, .sequence_parallel = sequence_parallel, .ep = ep}));
  expect_twin(experts({.dp = 2, .tp = 2, .row_groups = true, .ep = 2}));
}

TEST(Experts, CutOverRanksOfTheirOwn) {
  for (const auto& [dp, tp, ep, etp] :
       {std::tuple{1, 2, 1, 2}, {2, 2, 2, 2}, {4, 1, 2, 2}, {2, 1, 1, 2}, {4, 2, 2, 2}, {2, 4, 4, 2}, {2, 2, 1, 4}})
    for (const bool sequence_parallel : {true, false}) {
      if (tp == 1 && !sequence_parallel) continue;
      expect_twin(experts({.dp = dp, .dropout = 0.1, .tp = tp, .sequence_parallel = sequence_parallel, .ep = ep, .etp = etp}));
    }
}

// Shards of experts and of all else are over other ranks: as many, fewer, one, or several where the rest has one.
TEST(Experts, StatesSharedOutOverTheRanksThatHoldThem) {
  for (const int zero : {1, 2, 3}) {
    expect_twin(experts({.dp = 4, .zero = zero, .ep = 1}));
    expect_twin(experts({.dp = 4, .zero = zero, .ep = 2}));
    expect_twin(experts({.dp = 2, .zero = zero, .ep = 2}));
    expect_twin(experts({.dp = 4, .zero = zero, .dp_replicate = 2, .ep = 2}));
    expect_twin(experts({.dp = 4, .zero = zero, .dp_replicate = 2, .ep = 1}));
    expect_twin(experts({.dp = 2, .tp = 2, .zero = zero, .ep = 2}));
    expect_twin(experts({.dp = 2, .tp = 2, .row_groups = true, .zero = zero, .ep = 2, .etp = 2}));
    expect_twin(experts({.dp = 1, .tp = 2, .zero = zero}));
  }
}

TEST(Experts, InPipelines) {
  expect_twin(experts({.dp = 2, .dropout = 0.1, .pp = 2, .ep = 2}));
  expect_twin(experts({.dp = 2, .zero = 2, .pp = 2, .ep = 2}));
  expect_twin(experts({.dp = 2, .tp = 2, .pp = 2, .ep = 2, .etp = 2}));
  for (const auto& [schedule, stages] : {std::pair{program::ScheduleKind::kInterleaved, 2}, {program::ScheduleKind::kZbV, 2}})
    expect_twin(experts({.dp = 2, .pp = 2, .schedule = schedule, .virtual_stages = stages, .ep = 2}));
}

TEST(Experts, ComputedAgain) {
  for (const Recompute choice : {Recompute::kSelective, Recompute::kFull})
    for (Case c : {experts({.dp = 2, .dropout = 0.1, .ep = 2}), experts({.dp = 1, .tp = 2, .ep = 2}),
                   experts({.dp = 2, .tp = 2, .sequence_parallel = false, .ep = 2, .etp = 2, .shared_experts = 1})}) {
      c.recompute.assign(static_cast<size_t>(layout_for(c, kExpertBatch).model.layers), choice);
      expect_twin(c);
    }
}

TEST(Experts, OffTheDevice) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / cat("experts_", getpid());
  for (const auto& [dp, ep, zero] : {std::tuple{2, 2, 0}, {2, 2, 3}, {4, 2, 3}, {4, 2, 1}})
    for (const bool parameters : {false, true}) {
      if (parameters && zero == 1) continue;  // refused: every step gathers all of them
      Case c = experts({.dp = dp, .zero = zero, .offload = {.optimizer = true, .parameters = parameters}, .ep = ep});
      expect_twin(c);
      program::Layout layout = layout_for(c, kExpertBatch);
      testing::put_on_disk(layout);
      expect_twin(c, layout, {.disk_path = folder});
    }
}

// Every way to route: capacity, balance, groups of the choice, a shared expert.
TEST(Experts, RoutedInEveryWay) {
  using config::Router;
  std::vector<Case> ways;
  for (const Router router : {Router::kSoftmax, Router::kSigmoid, Router::kExpertChoice})
    ways.push_back({.moe = testing::balanced(), .router = router});
  for (const config::Drop drop : {config::Drop::kProbability, config::Drop::kPosition}) {
    config::MoeSection capacity = testing::balanced();
    capacity.capacity_factor = 0.75;
    capacity.drop = drop;
    ways.push_back({.moe = capacity, .shared_experts = 2});
  }
  ways.push_back({.moe = {.balance = config::Balance::kBias, .z_coefficient = 0.01}, .router = Router::kSigmoid});
  ways.push_back({.moe = {.balance = config::Balance::kNone}});
  ways.push_back({.moe = {.capacity_factor = 0.75, .scope = config::MoeScope::kLastStep, .aux_coefficient = 0.02, .z_coefficient = 0.003}});
  for (const Case& way : ways)
    for (const auto& [dp, tp, ep, etp] : {std::tuple{2, 1, 2, 1}, {2, 2, 2, 1}, {2, 2, 2, 2}}) {
      Case c = experts(way);
      c.dp = dp, c.tp = tp, c.ep = ep, c.etp = etp;
      expect_twin(c);
      c.sequence_parallel = false;
      if (tp > 1) expect_twin(c);
    }
}

config::MoeSection by_last_step() {
  config::MoeSection moe = testing::balanced();
  moe.scope = config::MoeScope::kLastStep;
  return moe;
}

// The loads of all ranks, microbatches and stages judge the step after: from the second on its gradients follow from them.
TEST(Experts, JudgedByTheLastStep) {
  // Weights hardly move, so that no token comes to lie between two experts.
  const auto trained = [](const Case& c) { return testing::train_layout(layout_for(c, kExpertBatch), {.steps = 3, .lr = 1e-7}); };
  config::MoeSection drops = by_last_step();
  drops.capacity_factor = 1.0;
  for (const config::MoeSection& moe : {by_last_step(), drops}) {
    const testing::Outcome expected = trained(testing::twin_of(experts({.moe = moe})));
    EXPECT_NE(expected.steps[1].aux_loss, expected.steps[0].aux_loss);
    const auto blocks = static_cast<double>(expert_loads(layout_for(testing::twin_of(experts({.moe = moe})), kExpertBatch), expected.steps[0].loads).size());
    EXPECT_NEAR(expected.steps[0].aux_loss, blocks, 1e-5) << "even shares, of probabilities that add up to 1";
    for (Case c : {experts({.dp = 2, .ep = 2}), experts({.dp = 1, .tp = 2, .ep = 2}), experts({.dp = 1, .tp = 2, .sequence_parallel = false, .etp = 2}),
                   experts({.dp = 2, .zero = 3, .pp = 2, .ep = 2})}) {
      c.moe = moe;
      SCOPED_TRACE(testing::text_of(c));
      const testing::Outcome found = trained(c);
      for (size_t step = 0; step < 3; ++step)
        testing::expect_same_loads(layout_for(c, kExpertBatch), found.steps[step], expected.steps[step], 1e-4);
      testing::expect_same_gradients(found.gradients, expected.gradients, 1e-4);
    }
  }
}

// What is remembered of a step is the same in every layout, and says all that the next one needs.
TEST(Experts, LoadsThatACheckpointRemembers) {
  const program::Layout layout = layout_for(experts({.dp = 1, .moe = by_last_step()}), kExpertBatch);
  const testing::Outcome whole = testing::train_layout(layout, {.steps = 1});
  const Json json = routed_json(layout, whole.steps[0].loads);
  EXPECT_EQ(json.size(), expert_loads(layout, whole.steps[0].loads).size());
  const std::vector<double> again = loads_of_json(layout, parse_json(json.dump(), "state"));
  for (const ExpertLoad& load : expert_loads(layout, again))
    EXPECT_EQ(json[load.name].get<std::vector<double>>(), std::vector<double>(load.routed.begin(), load.routed.end())) << load.name;
  EXPECT_TRUE(routed_json(layout, {}).empty());
  EXPECT_TRUE(loads_of_json(layout, Json::object()).empty());
  EXPECT_THROW(loads_of_json(layout, Json{{"blocks.0", {1, 2}}}), CheckpointError);
  EXPECT_THROW(loads_of_json(layout, Json{{"blocks.0", "many"}}), CheckpointError);
}

// Its shares would be divided by zero, or be negative.
TEST(Experts, LoadsThatAreNoLoadsAreRefused) {
  const program::Layout layout = layout_for(experts({.dp = 1, .moe = by_last_step()}), kExpertBatch);
  std::vector<double> loads(static_cast<size_t>(layout.load_numbers()), 1.0);
  const Json sound = routed_json(layout, loads);
  EXPECT_FALSE(loads_of_json(layout, sound).empty());
  const auto refusal = [&](const std::string& block, const auto& change) {
    Json json = sound;
    change(json[block]);
    try {
      loads_of_json(layout, json);
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.message().code, "LS1302");
      return error.message().what;
    }
    return std::string("accepted");
  };
  for (const auto& [block, counts] : sound.items()) {
    const std::string negative = refusal(block, [](Json& of) { of[1] = -3; });
    EXPECT_NE(negative.find(cat(block, " has -3 assignments to expert 1")), std::string::npos) << negative;
    const std::string none = refusal(block, [](Json& of) { std::fill(of.begin(), of.end(), 0); });
    EXPECT_NE(none.find(cat(block, " has no assignment to any of ", counts.size(), " experts")), std::string::npos) << none;
  }
}

// Ranks share experts in an evaluation too: all go through the model equally often.
TEST(Experts, Evaluate) {
  const auto evaluated = [](const Case& c) {
    const program::Layout layout = layout_for(c, kExpertBatch);
    double loss = 0;
    int64_t tokens = 0;
    std::mutex mutex;
    lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout}, groups);
      for (const nn::Microbatch& microbatch : microbatches(layout, world.rank(), 9)) {
        const auto [sum, valid] = executor.evaluate(microbatch);
        const std::lock_guard lock(mutex);
        loss += sum;
        tokens += valid;
      }
      const StepResult step = executor.step(microbatches(layout, world.rank(), 0), 1, 1e-3);
      EXPECT_EQ(expert_loads(layout, step.loads)[0].total() / static_cast<double>(layout.model.experts.per_token),
                static_cast<double>(kExpertBatch * layout.seq_len));  // the evaluation is not counted
    });
    return std::pair(loss, tokens);
  };
  const auto [expected, tokens] = evaluated(testing::twin_of(experts({})));
  for (const Case& c : {experts({.dp = 2, .ep = 2}), experts({.dp = 2, .tp = 2, .ep = 4}), experts({.dp = 2, .zero = 3, .pp = 2, .ep = 2})}) {
    const auto [loss, counted] = evaluated(c);
    EXPECT_EQ(counted, tokens) << testing::text_of(c);
    EXPECT_NEAR(loss, expected, 1e-5 * expected) << testing::text_of(c);
  }
}

// How many rows come to a rank is known when they come: what is predicted is the most there may be.
TEST(Experts, MeasuredMemoryIsWithinThePredictedBound) {
  install_memory_tracking();
  for (const Case& c : {experts({.dp = 1, .seq_len = 64}), experts({.dp = 2, .seq_len = 64, .ep = 2}),
                        experts({.dp = 2, .seq_len = 64, .tp = 2, .ep = 2, .etp = 2, .shared_experts = 1})}) {
    const program::Layout layout = layout_for(c, kExpertBatch);
    lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout}, groups);
      for (int64_t step = 1; step <= 2; ++step)
        executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), step, 1e-3);
      const program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), world.rank());
      const program::MemoryBytes measured = executor.measured_memory();
      for (size_t i = 0; i < program::kNumMemoryCategories; ++i) {
        const std::string where = cat(testing::text_of(c), " rank ", world.rank(), " ", program::category_name(static_cast<MemoryCategory>(i)));
        EXPECT_LE(static_cast<double>(measured.bytes[i]), 1.05 * static_cast<double>(predicted.bytes[i])) << where;
      }
      for (const MemoryCategory exact : {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kOptimizer})
        EXPECT_NEAR(static_cast<double>(measured[exact]), static_cast<double>(predicted[exact]), 0.05 * static_cast<double>(predicted[exact]))
            << testing::text_of(c) << " " << program::category_name(exact);
    });
  }
}

// A step that is judged in the next one tells its loads then, and none of what was computed twice.
TEST(Experts, LoadsOfStepsThatPend) {
  const Case c = experts({.dp = 2, .pp = 2, .schedule = program::ScheduleKind::kZbH2, .ep = 2});
  program::Layout layout = layout_for(c, 2 * kExpertBatch);
  const auto train = [&](bool may_pend) {
    layout.pipeline.post_validation = may_pend;
    return testing::train_layout(layout, {.steps = 4, .max_grad_norm = 1.5, .may_pend = may_pend}).steps;
  };
  const std::vector<StepResult> expected = train(false), found = train(true);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found[i].loads, expected[i].loads) << i;
    EXPECT_EQ(found[i].aux_loss, expected[i].aux_loss) << i;
    EXPECT_EQ(found[i].z_loss, expected[i].z_loss) << i;
  }
}

}  // namespace
}  // namespace lockstep::engine

// A gradient that is not finite, put into one parameter of one rank in one step.
#include <ATen/ops/equal.h>
#include <ATen/ops/select.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/test_steps.h"
#include "lockstep/program/verify/verify.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using config::DataParallel;
using program::Action;
using program::ActionKind;
using testing::layout_for;
using testing::microbatches;

constexpr int64_t kBadStep = 2;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Injury {
  int rank = 0;
  std::string parameter;
  double value = kInfinity;
};

// Puts the value in at the last moment: before the bucket of the parameter is reduced or leaves the device, or before LOSS
// where nothing does.
class Injurer {
 public:
  Injurer(const program::Layout& layout, Injury injury)
      : program_(program::build_program(layout)), injury_(std::move(injury)) {}

  bool active = false;
  void operator()(const Action& action, ParameterStore& store) {
    if (!active || !is_time(action, store)) return;
    store.parameter(injury_.parameter).grad.flatten()[0].fill_(injury_.value);
    active = false;
  }

 private:
  bool is_time(const Action& action, const ParameterStore& store) const {
    if (action.kind == ActionKind::kLoss) return true;
    if (action.kind != ActionKind::kReduceGrad && action.kind != ActionKind::kPush && action.kind != ActionKind::kShardGrad)
      return false;
    const program::Bucket& bucket = program_.buckets.at(static_cast<size_t>(action.bucket));
    for (const arch::FlatUnit& unit : store.layout().units)
      for (const arch::FlatSlot& slot : unit.slots)
        if (store.table()[static_cast<size_t>(slot.param)].name == injury_.parameter)
          return slot.offset >= bucket.begin && slot.offset < bucket.end;
    return false;
  }

  program::Program program_;
  Injury injury_;
};

std::vector<at::Tensor> copies(const ParameterStore& store) {
  std::vector<at::Tensor> all;
  for (const StateTensor& tensor : store.state()) all.push_back(tensor.local.clone());
  return all;
}

void expect_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << where << " tensor " << i;
}

// Gradients on the host are looked at there, or by flags as on a device.
enum class Look { kHost, kFlags };
MarkNonFinite mark_of(Look look) {
  if (look == Look::kHost) return {};
  return [](const std::vector<nn::cuda::WatchedPiece>& pieces, const at::Tensor& flags) {
    nn::cuda::mark_nonfinite(pieces, flags);
  };
}

// One rank through three steps, the second of them injured; what its state must be then comes from a twin that never saw
// the second batch.
void play(comm::World& world, const program::Layout& layout, const Injury& injury, bool skip, Look look = Look::kHost) {
  Groups groups(world, layout);
  const auto injurer = std::make_shared<Injurer>(layout, injury);
  const std::string where =
      program::describe(layout) + (skip ? " skip" : " stop") + (look == Look::kHost ? "" : " by flags");
  Executor executor({.layout = layout,
                     .skip_nonfinite = skip,
                     .before_action = [injurer](const Action& action, ParameterStore& store) { (*injurer)(action, store); },
                     .mark_nonfinite = mark_of(look)},
                    groups);
  const std::string culprit = "rank " + std::to_string(injury.rank) + ": " + injury.parameter;
  const auto step = [&](int64_t batch, int64_t number) {
    return executor.step(microbatches(layout, world.rank(), batch), number, 1e-3);
  };
  step(0, 1);
  const std::vector<at::Tensor> before = copies(executor.store());
  injurer->active = world.rank() == injury.rank;
  std::string problem;
  StepResult result;
  try {
    result = step(1, kBadStep);
  } catch (const DivergedError& error) {
    problem = error.message().what;
  }
  EXPECT_FALSE(injurer->active) << where;
  EXPECT_EQ(problem, skip ? "" : "step 2: a gradient is not finite (" + culprit + ")") << where;
  EXPECT_EQ(result.skipped, skip ? culprit : "") << where;
  expect_equal(copies(executor.store()), before, where);

  EXPECT_EQ(step(2, kBadStep).skipped, "") << where;
  Executor twin({.layout = layout}, groups);
  twin.step(microbatches(layout, world.rank(), 0), 1, 1e-3);
  twin.step(microbatches(layout, world.rank(), 2), 2, 1e-3);
  expect_equal(copies(executor.store()), copies(twin.store()), where + " afterwards");
}

TEST(NonFinite, IsNamedAndAllRanksStopOrSkipAlike) {
  for (const int dp : {1, 2, 4})
    for (const DataParallel kind : {DataParallel::kRing, DataParallel::kParameterServer})
      for (const bool skip : {false, true})
        for (const char* parameter : {"blocks.1.mlp.down.weight", "embed.tokens.weight"}) {
          const program::Layout layout = layout_for({.dp = dp, .kind = kind});
          lockstep::testing::run_ranks(dp, [&](comm::World& world) {
            play(world, layout, {.rank = dp - 1, .parameter = parameter}, skip);
          });
        }
}

TEST(NonFinite, IsNamedAtEveryStageOfZero) {
  for (const int zero : {1, 2, 3})
    for (const int replicate : {1, 2})
      for (const bool skip : {false, true})
        for (const char* parameter : {"blocks.1.mlp.down.weight", "embed.tokens.weight"}) {
          const program::Layout layout = layout_for({.dp = 4, .zero = zero, .dp_replicate = replicate});
          lockstep::testing::run_ranks(4, [&](comm::World& world) {
            play(world, layout, {.rank = 3, .parameter = parameter}, skip);
          });
        }
}

// What is on the host, or was on its way there, is as before the step too.
TEST(NonFinite, IsNamedWhereStatesAreOffloaded) {
  for (const auto& [dp, zero] : {std::pair{1, 0}, {2, 0}, {2, 3}})
    for (const bool skip : {false, true}) {
      const program::Layout layout =
          layout_for({.dp = dp, .zero = zero, .recompute = {arch::Recompute::kFull, arch::Recompute::kFull},
                      .offload = {.optimizer = true, .parameters = true, .activations = true}});
      lockstep::testing::run_ranks(dp, [&](comm::World& world) {
        play(world, layout, {.rank = layout.mesh.world_size() - 1, .parameter = "blocks.1.mlp.down.weight"}, skip);
      });
    }
}

TEST(NonFinite, ANanInBf16WithoutOverlapToo) {
  const program::Layout layout =
      layout_for({.dp = 2, .precision = config::Precision::kBf16, .overlap = false});
  for (const bool skip : {false, true})
    lockstep::testing::run_ranks(2, [&](comm::World& world) {
      play(world, layout,
           {.rank = 0, .parameter = "blocks.0.attention.out.weight", .value = std::numeric_limits<double>::quiet_NaN()},
           skip);
    });
}

// What a device finds out, and the host reads with the loss, names the same.
TEST(NonFinite, IsNamedByTheFlagsOfADevice) {
  const std::vector<testing::Case> cases = {
      {.dp = 1},
      {.dp = 2},
      {.dp = 2, .kind = DataParallel::kParameterServer},
      {.dp = 2, .zero = 2, .reduce_precision = config::Precision::kBf16},
      {.dp = 4, .zero = 3, .dp_replicate = 2},
      {.dp = 2, .zero = 3, .recompute = {arch::Recompute::kFull, arch::Recompute::kFull},
       .offload = {.optimizer = true, .parameters = true, .activations = true}},
      {.dp = 1, .tp = 2},
      {.dp = 2, .tp = 2, .zero = 1},
      {.dp = 2, .pp = 2, .blocks = 4},
  };
  bool skip = false;
  for (const testing::Case& c : cases) {
    const program::Layout layout = layout_for(c, 8);
    const int last = layout.mesh.world_size() - 1;  // it has the last block
    const std::string parameter = cat("blocks.", layout.model.layers - 1, ".mlp.down.weight");
    skip = !skip;
    lockstep::testing::run_ranks(last + 1, [&](comm::World& world) {
      play(world, layout, {.rank = last, .parameter = parameter}, skip, Look::kFlags);
    });
  }
}

// Each rank's gradient is finite, their sum is not: known only after the reduction, and still nothing is updated.
void expect_overflow_found(const program::Layout& layout, Look look) {
  lockstep::testing::run_ranks(2, [&](comm::World& world) {
    Groups groups(world, layout);
    Injurer injurer(layout, {.rank = 0, .parameter = "blocks.1.mlp.down.weight", .value = 3e38});
    injurer.active = true;  // on both ranks
    Executor executor({.layout = layout,
                       .skip_nonfinite = true,
                       .before_action = [&](const Action& action, ParameterStore& store) { injurer(action, store); },
                       .mark_nonfinite = mark_of(look)},
                      groups);
    const std::vector<at::Tensor> before = copies(executor.store());
    const StepResult result = executor.step(microbatches(layout, world.rank(), 0), 1, 1e-3);
    EXPECT_THAT(result.skipped, ::testing::HasSubstr("blocks.1.mlp.down.weight"));
    expect_equal(copies(executor.store()), before, program::describe(layout));
  });
}

TEST(NonFinite, ASumThatOverflowsIsFoundBeforeTheUpdate) {
  for (const Look look : {Look::kHost, Look::kFlags})
    for (const auto& [kind, zero] : {std::pair{DataParallel::kRing, 0}, {DataParallel::kParameterServer, 0},
                                     {DataParallel::kRing, 1}, {DataParallel::kRing, 2}, {DataParallel::kRing, 3}})
      expect_overflow_found(layout_for({.dp = 2, .kind = kind, .zero = zero}), look);
}

}  // namespace
}  // namespace lockstep::engine

// Memory of experts as ranks exchange rows in every way, where all rows go to the experts of one rank: what comes there is the most that
// is predicted.
#include <gtest/gtest.h>

#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/engine/test_experts.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::engine {
namespace {

using arch::Recompute;
using config::Dispatcher;
using testing::Case;
using testing::experts;
using testing::kExpertBatch;
using testing::layout_for;
using testing::microbatches;

// Routers' bias sends every row to the first ranks' experts, of which each has as many as a row goes to.
Case overloaded(Case c) {
  c.moe.balance = config::Balance::kBias;
  c.router = config::Router::kSigmoid;
  if (c.pp == 1) c.blocks = 2;
  return experts(c);
}

Case limited(Case c, double limit) {
  c.moe.imbalance_limit = limit;
  return overloaded(c);
}

Case of_slots(Case c) {
  c.moe.static_buffers = true;
  return overloaded(c);
}

program::Layout layout_with(const Case& c, Dispatcher dispatcher = Dispatcher::kAllToAll) {
  program::Layout layout = layout_for(c, kExpertBatch);
  layout.dispatcher = dispatcher;
  if (dispatcher == Dispatcher::kHierarchical) layout.node_ranks = 2;
  return layout;
}

void expect_all_at_the_first_rank(const program::Layout& layout, const StepResult& step) {
  const auto here = static_cast<size_t>(layout.model.experts.count / layout.ep);
  for (const ExpertLoad& load : expert_loads(layout, step.loads)) {
    const std::span first = load.routed.first(here);
    EXPECT_EQ(std::accumulate(first.begin(), first.end(), 0.0), load.total()) << load.name;
    if (layout.moe.imbalance_limit) {
      EXPECT_GT(load.further_rounds, 0) << load.name;
    }
  }
}

void expect_within_the_bound(const program::Layout& layout) {
  install_memory_tracking();
  SCOPED_TRACE(program::describe(layout));
  lockstep::testing::run_ranks(layout.mesh.world_size(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    testing::prefer_first_rank(executor, 100);
    for (int64_t step = 1; step <= 2; ++step) {
      const StepResult result = executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), step, 1e-3);
      if (world.rank() == 0) expect_all_at_the_first_rank(layout, result);
    }
    program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), world.rank());
    program::MemoryBytes measured = executor.measured_memory();
    // A layer in rounds keeps nothing: what it keeps in one round is workspace then.
    if (layout.moe.imbalance_limit)
      for (program::MemoryBytes* of : {&predicted, &measured}) {
        int64_t& activations = of->bytes[static_cast<size_t>(MemoryCategory::kActivations)];
        activations += std::exchange(of->bytes[static_cast<size_t>(MemoryCategory::kBuffers)], 0);
      }
    for (size_t i = 0; i < program::kNumMemoryCategories; ++i)
      EXPECT_LE(static_cast<double>(measured.bytes[i]), 1.05 * static_cast<double>(predicted.bytes[i]))
          << "rank " << world.rank() << " " << program::category_name(static_cast<MemoryCategory>(i));
    EXPECT_LE(static_cast<double>(measured.peak), 1.05 * static_cast<double>(predicted.peak)) << "rank " << world.rank();
  });
}

TEST(ExpertMemoryOfARun, OfRowsOneByOne) { expect_within_the_bound(layout_with(overloaded({.dp = 2, .seq_len = 64, .ep = 2}))); }

// 63 rows do not divide by 2: the rank with fewer sends a copy.
TEST(ExpertMemoryOfARun, OfTokensToAllRanks) {
  expect_within_the_bound(layout_with(overloaded({.dp = 2, .seq_len = 64, .ep = 2}), Dispatcher::kAllGather));
  for (const bool sequence_parallel : {true, false})
    expect_within_the_bound(layout_with(overloaded({.dp = 1, .seq_len = 63, .tp = 2, .sequence_parallel = sequence_parallel, .ep = 2}),
                                        Dispatcher::kAllGather));
}

TEST(ExpertMemoryOfARun, OfTokensOverNodes) {
  expect_within_the_bound(layout_with(overloaded({.dp = 4, .seq_len = 64, .ep = 4}), Dispatcher::kHierarchical));
}

TEST(ExpertMemoryOfARun, OfMessagesOfSlots) {
  expect_within_the_bound(layout_with(of_slots({.dp = 2, .seq_len = 64, .ep = 2})));
  expect_within_the_bound(layout_with(of_slots({.dp = 4, .seq_len = 64, .ep = 2, .etp = 2})));
}

// Sums over rounds are there through a forward pass, whatever it keeps; weight gradients by themselves bring the rows once more.
TEST(ExpertMemoryOfARun, InRounds) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kFull})
    for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather}) {
      Case c = limited({.dp = 2, .seq_len = 64, .ep = 2}, 1);
      c.recompute.assign(2, recompute);
      expect_within_the_bound(layout_with(c, dispatcher));
    }
  expect_within_the_bound(layout_with(limited({.dp = 2, .seq_len = 64, .pp = 2, .schedule = program::ScheduleKind::kZbH1, .ep = 2}, 1)));
}

}  // namespace
}  // namespace lockstep::engine

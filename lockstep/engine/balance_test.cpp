// What an uneven load costs, in rows: the rank that most of them come to does the work of several while the others wait; and that the update
// of the routers' bias evens it out. bench/imbalance.cpp has the times.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/engine/test_experts.h"

namespace lockstep::engine {
namespace {

using testing::Case;
using testing::experts;
using testing::kExpertBatch;
using testing::layout_for;
using testing::microbatches;
using testing::prefer_first_rank;

Case with_bias(double rate) {
  return experts({.dp = 2, .ep = 2, .moe = {.balance = config::Balance::kBias, .bias_rate = rate}, .router = config::Router::kSigmoid});
}

// Rows of the rank with most over the mean of the ranks, of the block where that is worst.
double busiest_rank(const program::Layout& layout, const StepResult& step) {
  const auto here = static_cast<size_t>(layout.model.experts.count / layout.ep);
  double worst = 0;
  for (const ExpertLoad& load : expert_loads(layout, step.loads))
    for (size_t first = 0; first < load.routed.size(); first += here) {
      const auto of_rank = load.routed.subspan(first, here);
      worst = std::max(worst, std::accumulate(of_rank.begin(), of_rank.end(), 0.0) * layout.ep / load.total());
    }
  return worst;
}

// Of each step; weights stay as they are.
std::vector<double> busiest_ranks(double rate, double shift, int64_t steps) {
  const program::Layout layout = layout_for(with_bias(rate), kExpertBatch);
  std::vector<double> busiest;
  lockstep::testing::run_ranks(2, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    prefer_first_rank(executor, shift);
    for (int64_t step = 1; step <= steps; ++step) {
      const StepResult result = executor.step(microbatches(layout, world.rank(), step), step, /*lr=*/0);
      if (world.rank() == 0) busiest.push_back(busiest_rank(layout, result));
    }
  });
  return busiest;
}

TEST(Balance, UnevenLoadIsWorkOfOneRank) {
  EXPECT_EQ(busiest_ranks(1e-9, 1, 2), (std::vector<double>{2, 2})) << "rank 0 has all rows of both, and nothing moves";
  for (const double even : busiest_ranks(1e-9, 0, 2)) EXPECT_LT(even, 1.8);
}

// Of one rank after each step: of what its experts hold the largest gradient and first moment, and what it sent, beside the prediction.
struct Idle {
  bool preferred = false;  // it has the experts that all rows go to
  double gradient = 0, moment = 0;
  std::vector<std::string> traffic{};
};

// The largest element of a state of this rank's experts; NaN is told as such.
double largest(ParameterStore& store, const std::function<at::Tensor(size_t unit)>& of_unit) {
  double most = 0;
  for (size_t unit = 0; unit < store.layout().units.size(); ++unit) {
    if (store.layout().units[unit].group != arch::ParameterGroup::kExperts) continue;
    const at::Tensor all = of_unit(unit);
    EXPECT_TRUE(all.defined());
    if (!all.defined() || all.numel() == 0) continue;
    EXPECT_TRUE(all.isfinite().all().item<bool>());
    most = std::max(most, all.abs().max().item<double>());
  }
  return most;
}

// Rank 1's experts get rows in the first step and none in those behind it: they take part in all calls, their gradients are zero, and their
// first moments decay by beta1 each step.
TEST(Balance, ARankWithoutRowsTakesPart) {
  for (const int zero : {0, 3}) {
    Case c = with_bias(1e-9);
    c.zero = zero, c.dp = zero > 0 ? 4 : 2;
    const program::Layout layout = layout_for(c, kExpertBatch);
    std::vector<std::vector<Idle>> by_rank(static_cast<size_t>(c.dp));
    lockstep::testing::run_ranks(c.dp, [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout, .max_grad_norm = 0}, groups);
      for (int64_t step = 1; step <= 3; ++step) {
        if (step == 2) prefer_first_rank(executor, 1);
        groups.take_ledger();
        executor.step(microbatches(layout, world.rank(), step), step, /*lr=*/1e-4);
        ParameterStore& store = executor.store();
        by_rank[static_cast<size_t>(world.rank())].push_back(
            {.preferred = groups.experts()->rank() == 0,
             .gradient = largest(store, [&](size_t unit) { return store.grad_part(unit); }),
             .moment = largest(store, [&](size_t unit) { return store.state_part(unit, StateKind{"exp_avg"}); }),
             .traffic = program::Ledger::difference(program::predict_ledger(layout, executor.program(), world.rank()), groups.take_ledger())});
      }
    });
    const double beta1 = layout.optimizer.beta1;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      SCOPED_TRACE(cat("zero ", zero, " rank ", rank));
      const std::vector<Idle>& steps = by_rank[rank];
      for (const Idle& step : steps) EXPECT_EQ(step.traffic, std::vector<std::string>());
      EXPECT_GT(steps[0].gradient, 0);
      for (size_t i = 1; i < steps.size(); ++i) {
        if (steps[i].preferred) {
          EXPECT_GT(steps[i].gradient, 0);
          continue;
        }
        EXPECT_EQ(steps[i].gradient, 0);
        EXPECT_NEAR(steps[i].moment, beta1 * steps[i - 1].moment, 1e-6 * steps[i - 1].moment);
      }
    }
  }
}

TEST(Balance, TheBiasEvensItOut) {
  const std::vector<double> busiest = busiest_ranks(0.002, 0.1, 100);
  EXPECT_GT(busiest.front(), 1.7);
  const double end = std::accumulate(busiest.end() - 10, busiest.end(), 0.0) / 10;
  EXPECT_LT(end, 1.35);  // a few dozen distinct tokens do not divide evenly
  EXPECT_LT(end, 0.8 * busiest.front());
}

}  // namespace
}  // namespace lockstep::engine

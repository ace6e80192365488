// What an uneven load costs, in rows: the rank that most of them come to does the work of several while the others wait; and that the update
// of the routers' bias evens it out. bench/imbalance.cpp has the times.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "lockstep/engine/test_experts.h"

namespace lockstep::engine {
namespace {

using testing::Case;
using testing::experts;
using testing::kExpertBatch;
using testing::layout_for;
using testing::microbatches;

Case with_bias(double rate) {
  return experts({.dp = 2, .ep = 2, .moe = {.balance = config::Balance::kBias, .bias_rate = rate}, .router = config::Router::kSigmoid});
}

// Routers prefer the experts of rank 0 by so much.
void prefer_first_rank(Executor& executor, double shift) {
  const program::Layout& layout = executor.layout();
  for (StateTensor& tensor : executor.store().state())
    if (tensor.name.ends_with(".experts.router.bias")) tensor.local.zero_().narrow(0, 0, layout.model.experts.count / layout.ep).fill_(shift);
  executor.store().loaded();
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

TEST(Balance, TheBiasEvensItOut) {
  const std::vector<double> busiest = busiest_ranks(0.002, 0.1, 100);
  EXPECT_GT(busiest.front(), 1.7);
  const double end = std::accumulate(busiest.end() - 10, busiest.end(), 0.0) / 10;
  EXPECT_LT(end, 1.35);  // a few dozen distinct tokens do not divide evenly
  EXPECT_LT(end, 0.8 * busiest.front());
}

}  // namespace
}  // namespace lockstep::engine

#include "lockstep/plan/search/reasons.h"

#include <gtest/gtest.h>

namespace lockstep::plan {
namespace {

StepEstimate step_of(const Breakdown& breakdown) {
  StepEstimate estimate{.breakdown = breakdown};
  estimate.seconds = breakdown.sum();
  return estimate;
}

TEST(Reasons, NameTheTermsThatMakeTheDifference) {
  const StepEstimate a = step_of({.products = 5, .tensor = 0.5, .bubble = 0.2}), b = step_of({.products = 5, .tensor = 0.9, .bubble = 0.05});
  EXPECT_EQ(difference_text(a, b), "tensor parallel waits 400 ms less; bubble 150 ms more");
  EXPECT_EQ(difference_text(b, a), "tensor parallel waits 400 ms more; bubble 150 ms less");
  EXPECT_EQ(difference_text(a, a), "");
  // Less than 15 % of the largest is not worth saying.
  EXPECT_EQ(difference_text(step_of({.products = 4, .data = 0.1}), step_of({.products = 5, .data = 0.05})), "matrix products 1.0 s less");
  // The three largest.
  EXPECT_EQ(difference_text(step_of({}), step_of({.products = 5, .attention = 4, .host = 3, .data = 2})),
            "matrix products 5.0 s less, attention 4.0 s less, host and launches 3.0 s less");
}

TEST(Reasons, OfEachInItsPlace) {
  std::vector<Found> best(3);
  best[0].estimate = step_of({.products = 4});
  best[1].estimate = step_of({.products = 4, .bubble = 0.4});
  best[2].estimate = step_of({.products = 4, .bubble = 1});
  add_reasons(best);
  EXPECT_EQ(best[0].why, "faster than the next by 9.1 %: bubble 400 ms less");
  EXPECT_EQ(best[1].why, "slower than the best by 10 %: bubble 400 ms more");
  EXPECT_EQ(best[2].why, "slower than the best by 25 %: bubble 1.0 s more");
  best.resize(1);
  add_reasons(best);
  EXPECT_EQ(best[0].why, "no other that was simulated fits");
  std::vector<Found> equal(2);
  equal[0].estimate = equal[1].estimate = step_of({.products = 4});
  add_reasons(equal);
  EXPECT_EQ(equal[0].why, "as fast as the next");
  EXPECT_EQ(equal[1].why, "as fast as the best");
}

TEST(Reasons, OfMemory) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  EXPECT_EQ(share_text(0.0414), "4.1 %");
  Cluster cluster;
  cluster.device.memory = 80 * kGiB;
  cluster.host_memory = 512 * kGiB;
  EXPECT_EQ(memory_text(84 * kGiB, 76 * kGiB, cluster, 3), "needs 84.0 GiB of 80.0 GiB on stage 3");
  EXPECT_EQ(memory_text(79 * kGiB, 76 * kGiB, cluster, 3), "needs 79.0 GiB on stage 3 and leaves less than 4.00 GiB of 80.0 GiB");
  EXPECT_EQ(shortage_text({.stage = 1, .reserved = 81 * kGiB}, 80 * kGiB, cluster), "needs 81.0 GiB of 80.0 GiB on stage 1");
  EXPECT_EQ(shortage_text({.stage = 1, .reserved = 79 * kGiB}, 76 * kGiB, cluster), "needs 79.0 GiB on stage 1 and leaves less than 4.00 GiB of 80.0 GiB");
  EXPECT_EQ(shortage_text({.stage = 1, .reserved = 79 * kGiB}, 80 * kGiB, cluster), "what is offloaded needs more than the 512.0 GiB of a node's host");
  EXPECT_EQ(parts_text({.parameters = 2 * kGiB, .activations = 3 * kGiB, .peak = 5 * kGiB, .reserved = 6 * kGiB}),
            "parameters 2.00 GiB, activations 3.00 GiB, reserved beside these 1.00 GiB");
}

}  // namespace
}  // namespace lockstep::plan

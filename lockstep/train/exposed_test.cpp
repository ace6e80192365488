#include "lockstep/train/exposed.h"

#include <gtest/gtest.h>

namespace lockstep::train {
namespace {

TEST(Exposed, SharesOfAStepAndOfARun) {
  engine::StepResult step;
  step.exposed_by = {{"tp all_reduce", 0.25}, {"dp gradients", 0.5}};
  const Values shares = exposed_shares(step, 2);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0], (std::pair<std::string, double>("perf/exposed_comm/dp_gradients", 0.25)));
  EXPECT_EQ(shares[1], (std::pair<std::string, double>("perf/exposed_comm/tp_all_reduce", 0.125)));

  ExposedTotals totals;
  EXPECT_EQ(totals.text(), "");
  totals.add(step, 2);
  totals.add({}, 8);
  EXPECT_EQ(totals.text(), "waited for communication 7.5 % of 10.0 s: dp gradients 5.0 %, tp all_reduce 2.5 %");
}

}  // namespace
}  // namespace lockstep::train

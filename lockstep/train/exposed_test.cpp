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

// Hidden is what nobody waited for.
TEST(Exposed, CopiesOfARunAndHowMuchOfThemWasHidden) {
  ExposedTotals totals;
  EXPECT_EQ(totals.copies_text(), "");
  engine::StepResult step;
  step.copies = {.copies = 2, .bytes = 1 << 20, .seconds = 2, .exposed_seconds = 0.25};
  totals.add(step, 3);
  totals.add(step, 3);
  EXPECT_EQ(totals.copies_text(), "copied 2.00 MiB between host and device in 4.0 s, 87.5 % of it hidden");
  step.disk = {.copies = 1, .bytes = 1 << 20, .seconds = 1, .exposed_seconds = 1};
  totals.add(step, 3);
  EXPECT_EQ(totals.copies_text(), "copied 3.00 MiB between host and device in 6.0 s, 87.5 % of it hidden; "
                                  "1.00 MiB to and from disk in 1.0 s, 0.0 % of it hidden");
}

}  // namespace
}  // namespace lockstep::train

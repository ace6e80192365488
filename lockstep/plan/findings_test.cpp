#include "lockstep/plan/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/units.h"
#include "lockstep/plan/test_plan_page.h"

namespace lockstep::plan {
namespace {

using testing::HasSubstr;

Finding about(const PlanPage& page, std::string_view what) {
  const std::vector<Finding> all = findings(page);
  const auto found = std::ranges::find(all, what, &Finding::about);
  return found == all.end() ? Finding{} : *found;
}

TEST(Findings, SayWhichLayoutAndWhoChoseIt) {
  PlanPage page = hand_made_page();
  EXPECT_THAT(about(page, "layout").text, HasSubstr(describe(page.candidate)));
  EXPECT_THAT(about(page, "layout").text, HasSubstr("all 32 devices. The fastest of 9,321 layouts."));
  page.given = true;
  page.estimate.seconds = 6.5;  // the search has one of 5.2 s: 20 % less
  EXPECT_THAT(about(page, "layout").text, HasSubstr("The fastest that was found takes 20.0 % less: "));
  page.search.best.clear();
  EXPECT_THAT(about(page, "layout").text, HasSubstr("no other layout was found to fit"));
}

// 68.7 of 80 GB leave 14.1 %; of 77.2 GB, 2.8 GB or 3.5 % are little.
TEST(Findings, WarnOfMemoryThatIsNearlyFull) {
  PlanPage page = hand_made_page();
  EXPECT_FALSE(about(page, "memory").warns);
  EXPECT_THAT(about(page, "memory").text, HasSubstr("(14.1 %) are left."));
  page.estimate.stages[0].reserved = 77.2e9;
  EXPECT_TRUE(about(page, "memory").warns);
  EXPECT_THAT(about(page, "memory").text, HasSubstr("(3.5 %) are left."));
  page.estimate.stages[0].reserved = 84e9;
  page.estimate.fits = false;
  EXPECT_TRUE(about(page, "memory").warns);
  EXPECT_THAT(about(page, "memory").text, HasSubstr("It does not fit: stage 0 needs " + format_bytes(84e9)));
  EXPECT_EQ(about(page, "next best").text, "");  // of what cannot run
}

TEST(Findings, SayWhatARunCosts) {
  // 1e12 tokens of 4,194,304 a step: 238,418.6 steps of 5.2 s over 0.9 are 382.6 hours; 32 devices at $2.5 cost $30.6k.
  const std::string text = about(hand_made_page(), "step").text;
  EXPECT_THAT(text, HasSubstr("5.200 s; in 9 of 10 cases 4.800 s to 5.600 s."));
  EXPECT_THAT(text, HasSubstr("15d22h and $30.6k, failures and saving counted."));
}

TEST(Findings, NameTheLargestTermsAndWhatOthersCost) {
  PlanPage page = hand_made_page();
  // 3.0 of 5.2 s, and 0.4 of it.
  EXPECT_THAT(about(page, "limits").text, testing::StartsWith("matrix products 57.7 %, attention 9.6 %, pointwise work 7.7 %"));
  EXPECT_THAT(about(page, "limits").text, HasSubstr("Less pointwise work: "));
  page.what_ifs = {{.what = "tp 16", .seconds = 6.5, .choice = true}, {.what = "zero 0", .seconds = 4.94, .fits = false, .choice = true}};
  EXPECT_EQ(about(page, "otherwise").text, "Slower: tp 16 (+25.0 %). Faster, but does not fit: zero 0 (-5.0 %).");
  EXPECT_TRUE(about(page, "how sure").warns);
  EXPECT_THAT(about(page, "how sure").text, HasSubstr("Another layout is best when one of these is 10 % off: tensor_exposed."));
}

TEST(Findings, AreLinesOfATerminal) {
  PlanPage page = hand_made_page();
  page.estimate.stages[0].reserved = 79e9;
  EXPECT_THAT(findings_text(page), HasSubstr("\nmemory     ! It fits: "));
  page.estimate.seconds = 0;
  EXPECT_TRUE(findings(page).empty());
}

}  // namespace
}  // namespace lockstep::plan

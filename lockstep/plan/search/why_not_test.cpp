// What is said of one candidate beside the best.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/plan/search/test_search.h"

namespace lockstep::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using test_search::TestJob;

class WhyNot : public ::testing::Test {
 protected:
  WhyNot() : job_(test_search::test_job({.preset = "llama3-8b", .cluster = "2 nodes of 8xh100", .batch = 64, .length = 4096, .layers = 16})) {
    result_ = search_layouts(job_.job(), {.sensitivity = false, .estimate = {.traffic = false}});
  }
  std::string of(const Candidate& candidate) const { return why_not(job_.job(), candidate, result_); }
  const Candidate& best() const { return result_.best.at(0).candidate; }

  TestJob job_;
  SearchResult result_;
};

TEST_F(WhyNot, TheBestHasNothingAgainstIt) { EXPECT_THAT(of(best()), StartsWith("nothing speaks against it: it is the best, a step takes ")); }

TEST_F(WhyNot, IllegalOnesSayTheEquations) {
  EXPECT_THAT(of({.tp = 3, .dp = 1}), AllOf(StartsWith("illegal: "), HasSubstr("heads(32) % tp(3)")));
  EXPECT_THAT(of({.dp = 16, .micro_batch = 3}), AllOf(StartsWith("illegal: "), HasSubstr("global_batch(64)")));
  EXPECT_EQ(of({.tp = 8, .dp = 4}), "illegal: tp(8) x cp(1) x pp(1) x dp(4) = 32 ranks, and the cluster has 16 devices");
  EXPECT_THAT(of({.tp = 1 << 20, .pp = 1 << 20, .dp = 1}), StartsWith("illegal: tp(1048576)"));
}

TEST_F(WhyNot, WhatDoesNotFitSaysHowMuchItNeeds) {
  const std::string text = of({.dp = 16, .zero = 0, .micro_batch = 4});
  EXPECT_THAT(text, AllOf(StartsWith("does not fit: needs "), HasSubstr(" of 80.0 GiB on stage 0 (parameters "), HasSubstr("a step would take ")));
}

TEST_F(WhyNot, SlowerOnesSayByHowMuchAndWhy) {
  EXPECT_THAT(of({.tp = 16, .dp = 1, .zero = 0, .micro_batch = 1}),
              AllOf(StartsWith("slower than the best ("), HasSubstr(describe(best())), HasSubstr("tensor parallel waits"),
                    HasSubstr("its tensor parallel ranks do not fit a domain of 8 devices"), Not(HasSubstr("it uses"))));
  EXPECT_THAT(of({.tp = 2, .pp = 8, .dp = 1, .micro_batch = 8, .recompute = config::Recompute::kFull}),
              AllOf(HasSubstr("slower than the best ("), HasSubstr("bubble"), HasSubstr("8 microbatches fill a pipeline of 8 ranks badly")));
}

TEST_F(WhyNot, FewerDevicesAreNamed) {
  EXPECT_THAT(of({.tp = 8, .dp = 1, .zero = 0, .recompute = config::Recompute::kFull}), HasSubstr("it uses 8 of 16 devices"));
}

TEST_F(WhyNot, WithoutABestThereIsNoneToCompareWith) {
  result_.best.clear();
  EXPECT_THAT(of({.tp = 8, .dp = 2, .recompute = config::Recompute::kFull}), HasSubstr(", and no layout was found to fit"));
}

TEST_F(WhyNot, OneThatIsAsFastSaysSo) {
  Candidate same = best();
  same.sequence_parallel = best().tp > 1;  // means nothing without tp
  ASSERT_EQ(best().tp, 1);
  EXPECT_THAT(of(same), StartsWith("as fast as the best ("));
}

}  // namespace
}  // namespace lockstep::plan

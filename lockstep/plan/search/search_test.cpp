// The whole search: what its result holds to, and what it says where nothing fits.
#include "lockstep/plan/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/plan/search/test_search.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using test_search::TestJob;

const test_search::JobOf kJobs[] = {{.preset = "llama3-8b", .cluster = "8xh100", .batch = 32, .length = 4096, .layers = 12},
                                    {.preset = "qwen3-30b-a3b", .cluster = "2 nodes of 8xh100", .batch = 32, .length = 2048, .layers = 8},
                                    {.preset = "mamba2-130m", .cluster = "4xa100", .batch = 8, .length = 2048, .layers = 6}};

SearchResult search(const TestJob& job, const std::string& fixed = "", int keep = 5) {
  return search_layouts(job.job(), {.keep = keep, .fixed = parse_fixed(fixed), .estimate = {.traffic = false}});
}

int64_t sum_of(const std::map<Reject, int64_t>& rejected) {
  return std::accumulate(rejected.begin(), rejected.end(), int64_t{0}, [](int64_t sum, const auto& one) { return sum + one.second; });
}

double most_reserved(const Found& found) {
  double most = 0;
  for (const StageEstimate& stage : found.estimate.stages) most = std::max(most, stage.reserved);
  return most;
}

TEST(Search, ItsBestAreLegalFitAndStandInOrder) {
  for (const test_search::JobOf& of : kJobs) {
    const TestJob job = test_search::test_job(of);
    const SearchResult result = search(job);
    ASSERT_EQ(result.best.size(), 5U) << of.preset;
    EXPECT_TRUE(std::ranges::is_sorted(result.best, {}, [](const Found& one) { return one.estimate.seconds; }));
    for (const Found& found : result.best) {
      const auto ranks = static_cast<int>(ranks_of(found.candidate));
      EXPECT_EQ(ranks, job.cluster.devices());
      EXPECT_EQ(found.config, with_candidate(job.config, found.candidate));
      EXPECT_TRUE(program::layout_problems(found.config, job.model, ranks).empty()) << describe(found.candidate);
      EXPECT_TRUE(found.estimate.fits);
      EXPECT_LE(most_reserved(found), job.cluster.device.memory);
      EXPECT_NEAR(found.quick.memory / most_reserved(found), 1, 0.02) << describe(found.candidate);
      EXPECT_FALSE(found.why.empty());
      // The estimate is that of the layout.
      const StepEstimate again = estimate_step(program::make_layout(found.config, job.model, ranks), job.cluster, job.stack, {.traffic = false});
      EXPECT_EQ(again.seconds, found.estimate.seconds);
    }
    for (size_t i = 0; i < result.best.size(); ++i)
      for (size_t j = 0; j < i; ++j) EXPECT_FALSE(result.best[i].candidate == result.best[j].candidate);
    EXPECT_EQ(sum_of(result.rejected) + std::ssize(result.best), result.candidates) << of.preset;
    for (const auto& [reason, count] : result.rejected) EXPECT_GT(count, 0) << reject_text(reason);
  }
}

TEST(Search, TheFrontHasNoneThatAnotherBeats) {
  for (const test_search::JobOf& of : kJobs) {
    const SearchResult result = search(test_search::test_job(of));
    ASSERT_FALSE(result.pareto.empty());
    EXPECT_EQ(result.pareto[0].candidate, result.best[0].candidate);
    for (const Found& one : result.pareto)
      for (const Found& other : result.pareto) {
        if (&one == &other) continue;
        const bool as_good = other.estimate.seconds <= one.estimate.seconds && most_reserved(other) <= most_reserved(one) &&
                             ranks_of(other.candidate) <= ranks_of(one.candidate);
        EXPECT_FALSE(as_good) << describe(other.candidate) << " is as good as " << describe(one.candidate);
      }
    for (const Found& one : result.pareto) EXPECT_TRUE(one.estimate.fits);
  }
}

TEST(Search, DoesTheSameTwice) {
  for (const test_search::JobOf& of : kJobs) {
    const TestJob job = test_search::test_job(of);
    const SearchResult a = search(job), b = search(job);
    ASSERT_EQ(a.best.size(), b.best.size());
    for (size_t i = 0; i < a.best.size(); ++i) {
      EXPECT_EQ(a.best[i].candidate, b.best[i].candidate);
      EXPECT_EQ(a.best[i].estimate.seconds, b.best[i].estimate.seconds);
      EXPECT_EQ(a.best[i].why, b.best[i].why);
    }
    EXPECT_EQ(a.rejected, b.rejected);
    EXPECT_EQ(a.candidates, b.candidates);
    ASSERT_EQ(a.misses.size(), b.misses.size());
    for (size_t i = 0; i < a.misses.size(); ++i) EXPECT_EQ(a.misses[i].text, b.misses[i].text);
    ASSERT_EQ(a.sensitivity.size(), b.sensitivity.size());
    for (size_t i = 0; i < a.sensitivity.size(); ++i) EXPECT_EQ(a.sensitivity[i].plus, b.sensitivity[i].plus);
  }
}

TEST(Search, WhatIsFixedStays) {
  const TestJob job = test_search::test_job(kJobs[1]);
  for (const Found& found : search(job, "tp=2,ep=4,schedule=zb-h1,pp=2,recompute=selective,zero=2,micro_batch=2").best) {
    const Candidate& one = found.candidate;
    EXPECT_EQ(one.tp, 2);
    EXPECT_EQ(one.ep, 4);
    EXPECT_EQ(one.pp, 2);
    EXPECT_EQ(one.zero, 2);
    EXPECT_EQ(one.micro_batch, 2);
    EXPECT_EQ(one.schedule, config::ScheduleKind::kZbH1);
    EXPECT_EQ(one.recompute, config::Recompute::kSelective);
  }
  for (const Found& found : search(job, "sequence_parallel=false,tp=4,offload_optimizer=true").best) {
    EXPECT_FALSE(found.candidate.sequence_parallel);
    EXPECT_TRUE(found.candidate.offload_optimizer);
  }
}

// Freedom never makes the best slower, beside what two estimates of the same thing differ in.
TEST(Search, FixedFieldsMakeNothingFaster) {
  const TestJob job = test_search::test_job(kJobs[0]);
  const double free = search(job).best[0].estimate.seconds;
  for (const char* fixed : {"tp=2", "pp=2", "cp=2", "zero=3", "recompute=full", "micro_batch=1", "schedule=zb-h1,pp=4", "tp=8,dp=1"})
    EXPECT_GE(search(job, fixed, 1).best.at(0).estimate.seconds, free * (1 - 1e-9)) << fixed;
}

TEST(Search, MissesDoNotLeaveEnough) {
  TestJob job = test_search::test_job(kJobs[0]);
  job.cluster.device.memory = 24e9;
  const SearchResult result = search(job);
  ASSERT_FALSE(result.misses.empty());
  for (const NearMiss& miss : result.misses) {
    if (miss.reason != Reject::kMemory) continue;
    const auto layout = program::make_layout(with_candidate(job.config, miss.candidate), job.model, static_cast<int>(ranks_of(miss.candidate)));
    EXPECT_GT(estimate_step(layout, job.cluster, job.stack, {.traffic = false}).most_reserved(), (1 - kSpareMemory) * job.cluster.device.memory)
        << describe(miss.candidate);
    EXPECT_NE(miss.text.find("needs "), std::string::npos) << miss.text;
  }
}

// The best of a search without spare memory needs more than 95 % of this device; where all do, it is what is found, and the result says so.
TEST(Search, LeavesMemoryAsLongAsAnythingDoes) {
  TestJob job = test_search::test_job(kJobs[0]);
  const auto found = [&](double spare) { return search_layouts(job.job(), {.keep = 50, .spare = spare, .estimate = {.traffic = false}}); };
  const SearchResult full = found(0);
  job.cluster.device.memory = full.best[0].estimate.most_reserved() * 1.001;
  const SearchResult usual = found(kSpareMemory);
  for (const Found& one : usual.best) EXPECT_LE(one.estimate.most_reserved(), (1 - kSpareMemory) * job.cluster.device.memory) << describe(one.candidate);
  EXPECT_EQ(usual.spare, kSpareMemory);
  EXPECT_EQ(found(0).best[0].candidate, full.best[0].candidate);
  const SearchResult none = found(0.99);
  EXPECT_EQ(none.spare, 0);
  EXPECT_EQ(none.asked_spare, 0.99);
  EXPECT_EQ(none.best[0].candidate, full.best[0].candidate);
}

TEST(Search, WhereNothingFitsItSaysWhatIsMissing) {
  const TestJob job = test_search::test_job({.preset = "llama3-405b", .cluster = "8xh100", .batch = 8, .length = 2048});
  const SearchResult result = search(job);
  EXPECT_TRUE(result.best.empty());
  EXPECT_TRUE(result.pareto.empty());
  EXPECT_TRUE(result.sensitivity.empty());
  EXPECT_GT(result.rejected.at(Reject::kMemory), 0);
  EXPECT_EQ(sum_of(result.rejected), result.candidates);
  EXPECT_FALSE(result.misses.empty());
}

TEST(Search, WhereNothingIsLegalItSaysWhy) {
  const TestJob job = test_search::test_job({.preset = "llama3-8b", .cluster = "8xh100", .batch = 32, .length = 2048, .layers = 4});
  const auto only = [&](const char* fixed, Reject reason) {
    const SearchResult result = search(job, fixed);
    EXPECT_TRUE(result.best.empty()) << fixed;
    ASSERT_FALSE(result.rejected.empty()) << fixed;
    EXPECT_EQ(result.candidates, sum_of(result.rejected)) << fixed;
    EXPECT_TRUE(result.rejected.contains(reason)) << fixed << ": " << reject_text(result.rejected.begin()->first);
  };
  only("tp=3", Reject::kDomain);
  only("tp=16", Reject::kDomain);
  only("dp=3", Reject::kDomain);
  only("ep=2", Reject::kExperts);
  only("micro_batch=5", Reject::kBatch);
  only("pp=8,schedule=interleaved,virtual_stages=2", Reject::kLayers);
  only("schedule=zb-v,virtual_stages=3,pp=2", Reject::kLayers);
}

// What is wrong whatever the layout is refused as training refuses it.
TEST(Search, RefusesAConfigurationThatContradictsItself) {
  TestJob job = test_search::test_job(kJobs[0]);
  job.config.memory.offload.list = {config::Offloaded::kActivations};  // replaced by the candidate's
  EXPECT_FALSE(search(job).best.empty());
  job.config.optimizer.rules.list = {{.match = "no.such.parameter", .lr = 2.0}};
  EXPECT_THROW(search(job), ConfigError);
}

}  // namespace
}  // namespace lockstep::plan

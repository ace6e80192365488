// The ledger of a step beside the predicted one: what agrees, what does not, and what experts sent.
#include "lockstep/train/verify_traffic.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "lockstep/engine/test_experts.h"
#include "lockstep/train/test_verify.h"

namespace lockstep::train {
namespace {

using engine::Executor;
using engine::Groups;
using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(VerifyTraffic, ACallThatIsNotOfTheProgramIsNamedOnAllRanks) {
  const program::Layout layout = layout_for({.dp = 2});
  lockstep::testing::run_ranks(2, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    TrafficCheck traffic(executor, groups);
    const auto step = [&](int64_t number, bool sends_more) {
      traffic.begin();
      executor.step(microbatches(layout, world.rank(), 0), number, 1e-3);
      if (sends_more) groups.world().all_reduce(at::zeros({4}), {.id = program::call_id(program::Purpose::kTrace)}).wait();
      return traffic.judge(/*taken_back=*/false);
    };
    EXPECT_THAT(step(1, false), IsEmpty());
    EXPECT_TRUE(traffic.report().as_predicted);
    const std::vector<std::string> lines = step(2, true);
    EXPECT_THAT(lines, AllOf(SizeIs(2), Each(HasSubstr("trace: all_reduce over world"))));
    EXPECT_THAT(lines, Each(HasSubstr("not predicted; recorded 1 calls of 16 B")));
    EXPECT_THAT(step(3, false), IsEmpty());
    EXPECT_FALSE(traffic.report().as_predicted) << "of all steps";
    EXPECT_THAT(traffic.report().at_run_time, IsEmpty());
  });
}

// An update that goes ahead of the norm and was wrong is made again, with its gathers.
TEST(VerifyTraffic, AnUpdateThatIsTakenBackIsExpectedTwice) {
  Case c{.dp = 2, .zero = 1, .pp = 2, .schedule = program::ScheduleKind::kZbH2, .blocks = 4};
  program::Layout layout = layout_for(c, 16);
  layout.pipeline.post_validation = true;
  // Nothing moves with a learning rate of 0: the norm is the samples' alone.
  const auto norm_of = [&](int64_t samples) {
    return engine::testing::train_layout(layout, {.first_samples = samples, .lr = 0, .max_grad_norm = 0}).steps.at(0).grad_norm;
  };
  const double norms[] = {norm_of(0), norm_of(1)};
  const int64_t larger = norms[1] > norms[0] ? 1 : 0;
  lockstep::testing::run_ranks(layout.mesh.world_size(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .max_grad_norm = (norms[0] + norms[1]) / 2}, groups);
    TrafficCheck traffic(executor, groups);
    int64_t number = 0;
    for (const int64_t samples : {1 - larger, larger}) {
      traffic.begin();
      executor.step(microbatches(layout, world.rank(), samples), ++number, 0, /*may_pend=*/true);
      const auto settled = executor.settle();
      const bool taken_back = settled && settled->clip_factor < 1;
      EXPECT_EQ(taken_back, samples == larger);
      EXPECT_THAT(traffic.judge(taken_back), IsEmpty());
    }
  });
}

// Of each site the ranks' own ledgers; and the report shows it to people and programs.
TEST(VerifyTraffic, OfExpertsIsBesideBalancedRouting) {
  const VerifyReport report = testing::verified({.ranks = 2,
                                                 .fields = {"model.preset=mixtral-test", "model.layers=2", "parallel.ep=2"},
                                                 .options = {.steps = 2, .free = 0}});
  EXPECT_TRUE(report.ok) << verify_text(report);
  EXPECT_TRUE(report.traffic.as_predicted);
  ASSERT_THAT(report.traffic.at_run_time, SizeIs(4));
  // 2 blocks and 4 microbatches of 16 tokens on each rank, 2 experts a token, half of which are on the other rank: rows of 64 in fp32.
  constexpr int64_t kCalls = 2 * 4, kBalanced = kCalls * 16 * 2 / 2 * 64 * 4;
  for (const TrafficSite& site : report.traffic.at_run_time) {
    EXPECT_THAT(site.site, HasSubstr("blocks.*.experts."));
    EXPECT_EQ(site.axis, "ep");
    EXPECT_EQ(site.predicted_calls, kCalls) << site.site;
    EXPECT_EQ(site.calls, kCalls) << site.site;
    EXPECT_EQ(site.predicted_bytes, kBalanced) << site.site;
    EXPECT_LE(site.bytes, 2 * kBalanced) << site.site << ": all rows";
    EXPECT_GE(site.most_bytes, site.bytes) << site.site;
    if (site.most_rank == 0) {
      EXPECT_EQ(site.most_bytes, site.bytes) << site.site;
    }
  }
  const std::string text = verify_text(report);
  EXPECT_THAT(text, HasSubstr("blocks.*.experts.combine backward"));
  EXPECT_THAT(text, HasSubstr("all other calls of all steps sent what was predicted, on every rank"));
  const Json json = Json::parse(verify_json(report));
  EXPECT_EQ(json.at("traffic").at("at_run_time").size(), 4U);
  EXPECT_EQ(json.at("traffic").at("at_run_time").at(0).at("bytes").get<int64_t>(), report.traffic.at_run_time[0].bytes);
}

// A layout without such calls says nothing of them.
TEST(VerifyTraffic, OfADenseLayoutIsInJsonAlone) {
  const VerifyReport report = testing::verified({.options = {.steps = 1, .free = 0}});
  EXPECT_TRUE(report.ok) << verify_text(report);
  EXPECT_TRUE(report.traffic.as_predicted);
  EXPECT_THAT(report.traffic.at_run_time, IsEmpty());
  EXPECT_EQ(verify_text(report).find("sent"), std::string::npos);
  EXPECT_TRUE(Json::parse(verify_json(report)).at("traffic").at("as_predicted").get<bool>());
}

}  // namespace
}  // namespace lockstep::train

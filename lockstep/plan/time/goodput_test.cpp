#include "lockstep/plan/time/goodput.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using testing::HasSubstr;

constexpr double kHour = 3600;

// One node that fails once in `mean` seconds.
Cluster failing(double mean) {
  Cluster cluster;
  cluster.failures = kHour / mean;
  return cluster;
}
double useful(double save, double mean, double interval) {
  return goodput_of(failing(mean), {.blocked = save, .complete = save}, {.interval = interval, .restart = 0}).useful;
}

TEST(GoodputTest, YoungIsTheSquareRoot) { EXPECT_DOUBLE_EQ(young_interval(50, 10000), 1000); }

// The best of many intervals is hardly better than Daly's, and Young's is no better.
TEST(GoodputTest, DalyFindsTheBestInterval) {
  for (const double save : {1e-3, 1e-2, 0.1, 0.3}) {  // in means between failures
    double best = 0;
    for (double interval = save / 20; interval < 4; interval *= 1.002) best = std::max(best, useful(save, 1, interval));
    const double daly = useful(save, 1, daly_interval(save, 1));
    EXPECT_GT(daly, best * 0.9995) << save;
    EXPECT_GE(daly, useful(save, 1, young_interval(save, 1)) - 1e-6) << save;
  }
  EXPECT_DOUBLE_EQ(daly_interval(5, 2), 2) << "saving takes longer than what there is between failures";
  EXPECT_NEAR(daly_interval(1e-8, 1), young_interval(1e-8, 1), 1e-8);
}

struct Simulated {
  double interval = 0, blocked = 0, complete = 0, restart = 0;  // in means between failures
};
// A run of many failures, each at random, step by step in time.
double simulate(const Simulated& of) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> between(1);
  double now = 0, trained = 0, safe = 0, next_failure = between(random);  // training done, and of that what is on disk
  double begun = 0, done_at = -1;                                        // the save under way: what it holds, when it is complete
  const double target = 2000;
  const auto fail = [&] {
    if (done_at >= 0 && done_at <= next_failure) safe = begun;
    done_at = -1;
    trained = safe;
    now = next_failure;
    next_failure = now + between(random);
    while (next_failure < now + of.restart) {
      now = next_failure;
      next_failure = now + between(random);
    }
    now += of.restart;
  };
  while (trained < target) {
    if (now + of.interval + of.blocked > next_failure) {
      fail();
      continue;
    }
    if (done_at >= 0) safe = begun;  // the one before is complete
    now += of.interval + of.blocked;
    trained += of.interval;
    begun = trained;
    done_at = now + of.complete - of.blocked;
  }
  return trained / now;
}

TEST(GoodputTest, IsWhatARunWithRandomFailuresGets) {
  for (const Simulated& of : std::vector<Simulated>{{.interval = 0.1, .blocked = 0.01, .complete = 0.01, .restart = 0.05},
                                                    {.interval = 0.5, .blocked = 0.1, .complete = 0.1, .restart = 0.3},
                                                    {.interval = 0.05, .blocked = 0.001, .complete = 0.03, .restart = 0.02},
                                                    {.interval = 0.2, .blocked = 0.005, .complete = 0.15, .restart = 0.05}}) {
    const Goodput goodput = goodput_of(failing(1), {.blocked = of.blocked, .complete = of.complete}, {.interval = of.interval, .restart = of.restart});
    EXPECT_NEAR(goodput.useful / simulate(of), 1, 0.03) << of.interval;
    EXPECT_NEAR(goodput.useful + goodput.saving + goodput.restarting + goodput.repeating, 1, 1e-12);
    EXPECT_GT(goodput.repeating, 0);
  }
}

// The Llama 3 Herd of Models (2024), section 3.3: 419 unexpected interruptions of 16,384 GPUs in 54 days, storage of 2 TB/s, more than 90 %
// of the time effective.
TEST(GoodputTest, LlamaThreeTrainedMoreThanNineTenthsOfTheTime) {
  Cluster cluster;
  cluster.nodes = 2048;
  cluster.devices_per_node = 8;
  cluster.device.pcie = 64e9;
  cluster.disk_bandwidth = 2e12 / cluster.nodes;
  cluster.failures = 419 / (54.0 * 24 * cluster.nodes);
  const Goodput goodput = goodput_of(cluster, save_seconds(cluster, 405e9 * 12));
  EXPECT_NEAR(goodput.between_failures, 54.0 * 24 * kHour / 419, 1e-6);
  EXPECT_GT(goodput.useful, 0.9);
  EXPECT_LT(goodput.useful, 0.97);
  EXPECT_GE(goodput.interval, 10 * (goodput.save.complete - goodput.save.blocked)) << "disks are busy a tenth of the time";
  EXPECT_THAT(goodput_text(goodput), HasSubstr("some node fails every 3h05m"));
}

TEST(GoodputTest, WithoutFailuresSavingAloneIsLost) {
  const Goodput none = goodput_of({}, {.blocked = 10, .complete = 10}), hourly = goodput_of({}, {.blocked = 36, .complete = 36}, {.interval = 3564});
  EXPECT_EQ(none.useful, 1);
  EXPECT_DOUBLE_EQ(hourly.saving, 0.01);
  EXPECT_THAT(goodput_text(none), HasSubstr("no failures are counted"));
}

TEST(GoodputTest, MoreNodesFailMoreOften) {
  Cluster cluster = failing(1e6);
  cluster.nodes = 100;
  EXPECT_DOUBLE_EQ(goodput_of(cluster, {.blocked = 1, .complete = 1}).between_failures, 1e4);
  EXPECT_DOUBLE_EQ(goodput_of(cluster, {.blocked = 1, .complete = 1}, {.nodes = 10}).between_failures, 1e5);
}

TEST(SaveSecondsTest, BytesOverBandwidths) {
  Cluster cluster;
  cluster.nodes = 4;
  cluster.devices_per_node = 8;
  cluster.device.pcie = 20e9;
  cluster.disk_bandwidth = 5e9;
  const SaveSeconds beside = save_seconds(cluster, 640e9), at_once = save_seconds(cluster, 640e9, {.asynchronous = false});
  EXPECT_DOUBLE_EQ(beside.blocked, 1);    // 20 GB of each device
  EXPECT_DOUBLE_EQ(beside.complete, 33);  // and 160 GB of each node
  EXPECT_DOUBLE_EQ(at_once.blocked, 33);
  EXPECT_DOUBLE_EQ(save_seconds(cluster, 640e9, {.ranks = 8}).complete, 4 + 128);
  cluster.disk_bandwidth = 0;
  try {
    save_seconds(cluster, 1);
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().code, "LS1157");
    EXPECT_THAT(error.message().what, HasSubstr("disk_bandwidth"));
  }
}

// AdamW: a value and two moments in fp32, however the states are shared out.
TEST(SaveSecondsTest, ACheckpointHasEveryStateOnce) {
  for (const int tp : {1, 2}) {
    config::RunConfig config;
    config.model.preset = "gpt2-124m";
    config.train.global_batch = 8;
    config.train.micro_batch = 1;
    config.train.seq_len = 128;
    config.parallel.tp = tp;
    config.parallel.zero = 3;
    const arch::ModelConfig model = arch::resolve_model(config.model);
    const double bytes = checkpoint_bytes(program::make_layout(config, model, 8));
    EXPECT_NEAR(bytes / (12.0 * static_cast<double>(arch::num_parameters(model))), 1, 1e-3);
  }
}

StepEstimate estimate_of(const Breakdown& breakdown) { return {.seconds = breakdown.sum(), .breakdown = breakdown, .tokens = 1000}; }

TEST(StragglingTest, AllWaitForTheSlowest) {
  const StepEstimate computing = estimate_of({.products = 6, .optimizer = 1, .bubble = 1});
  const Straggling slow = straggling(computing, {.nodes = {{3, 0.8}, {5, 0.9}}});
  EXPECT_DOUBLE_EQ(slow.seconds, 10);
  EXPECT_DOUBLE_EQ(slow.waits, 0.2);
  EXPECT_EQ(slow.node, 3);
  EXPECT_EQ(slow.nics, -1);
  EXPECT_DOUBLE_EQ(straggling(computing, {.nics = {{3, 0.5}}}).seconds, 8) << "nothing is sent";
  EXPECT_DOUBLE_EQ(straggling(computing, {}).waits, 0);
}

TEST(StragglingTest, SlowNicsSlowWhatGoesOverThem) {
  StepEstimate sending = estimate_of({.products = 6, .tensor = 2, .data = 1});
  EXPECT_DOUBLE_EQ(straggling(sending, {.nics = {{0, 0.5}}}).seconds, 10) << "data parallel alone";
  sending.traffic.axes = {{.axis = "tp", .sent = 4, .on = {3, 1}}, {.axis = "dp", .sent = 2, .on = {0, 2}}};
  EXPECT_DOUBLE_EQ(straggling(sending, {.nics = {{0, 0.5}}}).seconds, 10.5) << "and a quarter of tp";
}

TEST(MoneyTest, OfAStepATokenAndARun) {
  Cluster cluster;
  cluster.nodes = 64;
  cluster.devices_per_node = 8;
  cluster.price = 2.5;
  StepEstimate estimate{.seconds = 9, .tokens = 4e6};
  const Money money = money_of(cluster, estimate, {.tokens = 1e12, .useful = 0.9});
  EXPECT_DOUBLE_EQ(money.step, 512 * 2.5 / 400);
  EXPECT_DOUBLE_EQ(money.token, money.step / 4e6);
  EXPECT_DOUBLE_EQ(money.steps, 250000);
  EXPECT_DOUBLE_EQ(money.hours, 250000 * 10 / kHour);
  EXPECT_NEAR(money.run, 512 * 2.5 * money.hours, 1e-6);
  EXPECT_DOUBLE_EQ(money_of(cluster, estimate, {.devices = 8}).step, 8 * 2.5 / 400);
  cluster.price = 0;
  EXPECT_EQ(money_of(cluster, estimate, {.tokens = 1e12}).run, 0);
}

}  // namespace
}  // namespace lockstep::plan

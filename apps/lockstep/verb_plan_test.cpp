// lockstep plan as a person calls it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "apps/lockstep/test_program.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/load.h"
#include "lockstep/plan/plan_text.h"
#include "support/folders.h"

namespace lockstep::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Outcome run(const std::string& arguments) { return run_program("plan " + arguments); }

Json object(const std::string& arguments) {
  const Outcome outcome = run(arguments + " --json");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  return outcome.code == 0 ? parse_json(outcome.output, "plan") : Json();
}

const std::string kNode = "--model.preset=llama3-8b --train.global_batch=64 --cluster 8xh100 ";
const std::string kNodes = "--model.preset=llama3-8b --train.global_batch=128 "
                           "--cluster \"4 nodes of 8xh100, leaf-spine 400G, 2 nodes a leaf, 2:1, \\$2.5/h\" ";
const std::string kSmall = "--model.preset=llama-test --train.global_batch=32 --cluster 8xh100 ";

TEST(Plan, APresetAndAClusterAreEnough) {
  const Outcome outcome = run(kNode);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (const char* part : {"does it fit", "\nfits: ", "how long is a step", "MFU", "what limits it", "matrix products", "what is on every link",
                           "which layouts are best", "what rejected the others", "how sure is that", "start it", "lockstep train run.toml -n 8"})
    EXPECT_THAT(outcome.output, HasSubstr(part));
  EXPECT_THAT(outcome.output, HasSubstr("train.precision = \"bf16\""));  // nobody said it
  EXPECT_THAT(outcome.output, HasSubstr("train.seq_len = 4096"));
}

// The terms of a step add up to it, and tokens are those of the batch.
TEST(Plan, JsonSaysAllOfIt) {
  const Json json = object(kNodes + "--tokens 1e12 --what-if");
  const Json& step = json["step"];
  double sum = 0;
  for (const auto& term : step["breakdown"]) sum += term.get<double>();
  EXPECT_NEAR(sum, step["seconds"].get<double>(), 1e-6 * sum);
  EXPECT_EQ(step["tokens"], 128 * 4096);
  EXPECT_LT(step["low"], step["seconds"]);
  EXPECT_GT(step["high"], step["seconds"]);
  EXPECT_LT(step["mfu_causal"], step["mfu_noncausal"]);
  EXPECT_EQ(json["layout"]["devices"], 32);
  EXPECT_EQ(json["layout"]["from"], "search");
  EXPECT_NEAR(json["cost"]["step_money"].get<double>(), 2.5 * 32 * step["seconds"].get<double>() / 3600, 1e-9);
  EXPECT_EQ(json["cost"]["steps"], std::ceil(1e12 / (128 * 4096)));
  EXPECT_GT(json["what_ifs"].size(), 5u);
  EXPECT_GT(json["search"]["best"].size(), 1u);
  EXPECT_GT(json["traffic"]["links"].size(), 1u);
  EXPECT_EQ(json["stages"].size(), json["layout"]["pp"].get<size_t>());
}

TEST(Plan, ALayoutOfTheConfigurationIsHeldBesideTheBest) {
  const std::string given = kNode + "--parallel.tp=8 --parallel.zero=1 --train.micro_batch=1";
  const Json json = object(given);
  EXPECT_EQ(json["layout"]["from"], "configuration");
  EXPECT_EQ(json["layout"]["tp"], 8);
  EXPECT_LE(json["search"]["best"][0]["step"]["seconds"], json["step"]["seconds"]);
  EXPECT_THAT(run(given).output, HasSubstr("beside the best layout\n"));
  const Outcome refused = run(kNode + "--parallel.tp=3");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, HasSubstr("LS1101"));
}

TEST(Plan, WhatDoesNotFitIsSaidByTheCodeToo) {
  const std::string job = "--model.preset=gpt-100b --train.global_batch=8 --train.seq_len=2048 ";
  const Outcome given = run(job + "--train.micro_batch=1 --cluster 8xh100 --parallel.tp=8");
  EXPECT_EQ(given.code, 4) << given.output;
  EXPECT_THAT(given.output, HasSubstr("\ndoes not fit: "));
  EXPECT_THAT(given.output, HasSubstr("cheapest ways out"));
  const Outcome none = run(job + "--cluster 1xh100");
  EXPECT_EQ(none.code, 4) << none.output;
  EXPECT_THAT(none.output, HasSubstr("\ndoes not fit: none of "));
  EXPECT_THAT(none.output, HasSubstr("nearest misses"));
}

TEST(Plan, FilledConfigurationTrainsThatLayout) {
  const support::ScopedFolder folder("plan-fill");
  const std::string file = (folder / "run.toml").string();
  EXPECT_THAT(run(kNode + "--fill=" + file).output, HasSubstr("written: "));
  const config::RunConfig written = config::load_config({file}, {}).config;
  EXPECT_EQ(written.model.preset, "llama3-8b");
  EXPECT_EQ(written.train.global_batch, 64);
  EXPECT_EQ(written.train.device, config::Device::kCuda);
  const Json searched = object(kNode), read = object(file + " --cluster 8xh100");
  EXPECT_EQ(read["layout"]["from"], "configuration");
  for (const char* key : {"tp", "pp", "cp", "dp", "zero", "micro_batch", "recompute", "virtual_stages"})
    EXPECT_EQ(read["layout"][key], searched["layout"][key]) << key;
  EXPECT_EQ(read["step"]["seconds"], searched["step"]["seconds"]);
  EXPECT_THAT(run(kNode + "--fill").output, HasSubstr("# lockstep plan --model.preset=llama3-8b"));
}

TEST(Plan, WhyNotAndFixed) {
  const Json json = object(kNodes + "--why-not tp=16 --why-not tp=7");
  ASSERT_EQ(json["why_not"].size(), 2u);
  EXPECT_EQ(json["why_not"][0]["layout"], "tp=16");
  EXPECT_FALSE(json["why_not"][1].contains("step"));  // 32 heads are not cut in 7
  const Json fixed = object(kNodes + "--fixed tp=4,pp=2");
  for (const Json& found : fixed["search"]["best"]) {
    EXPECT_EQ(found["layout"]["tp"], 4);
    EXPECT_EQ(found["layout"]["pp"], 2);
  }
}

// Tensor parallelism that leaves the node waits for NICs: a result, and no rule.
TEST(Plan, TheOppositeCostsMore) {
  const Json inside = object(kNodes + "--parallel.tp=8 --train.micro_batch=1"), across = object(kNodes + "--parallel.tp=16 --train.micro_batch=1");
  EXPECT_GT(across["step"]["breakdown"]["tensor"], 2 * inside["step"]["breakdown"]["tensor"].get<double>());
}

TEST(Plan, SlowNodesHoldUpAll) {
  const Json json = object(kNodes + "--slow node=3:0.5");
  EXPECT_GT(json["step"]["seconds"], json["nothing_slow"]["seconds"]);
  EXPECT_EQ(json["cluster"]["slow"]["nodes"]["3"], 0.5);
  EXPECT_THAT(run(kNodes + "--slow nic=1:0.5").output, HasSubstr("what is slow costs\n"));
}

TEST(Plan, ClustersSideBySide) {
  const std::string job = "--model.preset=llama3-8b --train.global_batch=128 ";
  const Outcome outcome = run(job + "--cluster \"4 nodes of 8xh100, 400G\" --cluster \"4 nodes of 8xh100, 100G\"");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\nB beside A: the step takes "));
  EXPECT_THAT(outcome.output, HasSubstr("\nfastest: A\n"));
  EXPECT_EQ(object(job + "--cluster 8xh100 --cluster 8xa100")["clusters"].size(), 2u);
}

// Of the whole run time and money stand beside each other, too, as the plan of one cluster says them.
TEST(Plan, ClustersSideBySideSayWhatTheRunTakes) {
  const std::string job = "--model.preset=llama3-8b --train.global_batch=128 --tokens 1e12 ", dear = "--cluster \"8xh100, \\$3/h\" ";
  const Outcome outcome = run(job + dear + "--cluster 8xa100");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const Json cost = object(job + dear)["cost"];
  for (const std::string& text : {std::string(" 1.00T tokens"), format_duration(cost["seconds"].get<double>()), plan::money_text(cost["money"].get<double>())})
    EXPECT_THAT(outcome.output, HasSubstr(text)) << outcome.output;
}

// A run has room for all rows that may come to the experts of a rank, which is more than a plan says: the page says what holds it to that.
TEST(Plan, ALayoutWithExpertsSaysWhatBoundsTheirRows) {
  const std::string job = "--model.preset=mixtral-8x7b --train.global_batch=64 --cluster 8xb200 --parallel.ep=8 --parallel.zero=1 --train.micro_batch=1 ";
  EXPECT_THAT(run(job).output, HasSubstr("moe.imbalance_limit = 1: without it"));
  EXPECT_THAT(run(job + "--imbalance 1.5").output, HasSubstr("moe.imbalance_limit = 1.5: without it"));
  EXPECT_THAT(run(job + "--fill").output, HasSubstr("imbalance_limit = 1 "));
  EXPECT_THAT(run(job + "--moe.imbalance_limit=2").output, Not(HasSubstr("without it")));
  EXPECT_EQ(object(job)["stages"], object(job + "--moe.imbalance_limit=1")["stages"]);
}

// Layouts leave what predictions of memory err by, or what is asked for; where none does, they fill the device, and the page says so.
TEST(Plan, LayoutsLeaveAShareOfTheMemory) {
  const auto left = [](const Json& plan) {
    double most = 0;
    for (const Json& stage : plan["stages"]) most = std::max(most, stage["reserved"].get<double>());
    return 1 - most / plan["cluster"]["device_memory"].get<double>();
  };
  const std::string job = "--model.preset=llama3-70b --train.global_batch=128 --cluster \"2 nodes of 8xh100\" ";
  const Json usual = object(job), full = object(job + "--spare 0"), roomy = object(job + "--spare 0.2");
  EXPECT_GE(left(usual), 0.05);
  EXPECT_GE(left(full), 0);
  EXPECT_GE(left(roomy), 0.2);
  EXPECT_LE(full["step"]["seconds"], usual["step"]["seconds"]);
  EXPECT_LE(usual["step"]["seconds"], roomy["step"]["seconds"]);
  EXPECT_EQ(usual["search"]["spare"], 0.05);
  const std::string none = job + "--spare 0.9";
  EXPECT_EQ(object(none)["search"]["spare"], 0);
  EXPECT_EQ(object(none)["search"]["asked_spare"], 0.9);
  for (const char* how : {"", "--fill"}) EXPECT_THAT(run(none + " " + how).output, HasSubstr("No layout was found that leaves 90.0 %"));
  EXPECT_THAT(run(none + " --cluster 16xh200").output, HasSubstr("A: No layout was found that leaves 90.0 %"));
  EXPECT_THAT(run(job + "--fill").output, Not(HasSubstr("No layout was found")));
  EXPECT_THAT(run(job).output, HasSubstr("too small, with 5.0 % left"));
}

// One rank could not take its batch: more bytes than 64 bits count.
TEST(Plan, ABatchThatNoRankCouldTakeAlone) {
  const Json plan = object("--model.preset=deepseek-v3 --train.global_batch=15360 --cluster \"256 nodes of 8xh100, leaf-spine 400G\" ");
  EXPECT_EQ(plan["layout"]["devices"], 2048);
}

TEST(Plan, AsManyNodesAsRanks) {
  EXPECT_EQ(object(kNode + "-n 64")["cluster"]["nodes"], 8);
  EXPECT_EQ(object(kNode + "-n 4")["layout"]["devices"], 4);
  const Outcome parts = run(kNode + "-n 12");
  EXPECT_EQ(parts.code, 2);
  EXPECT_THAT(parts.output, HasSubstr("LS1155"));
  EXPECT_THAT(parts.output, HasSubstr("-n 8 or 16"));
}

TEST(Plan, RefusesWhatContradicts) {
  const auto refused = [](const std::string& arguments, const char* code, const std::string& words) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(code)) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(words)) << arguments;
  };
  refused("--model.preset=llama3-8b", "LS1003", "needs --cluster");
  refused("--cluster 8xh100", "LS1004", "needs a configuration");
  refused(kSmall + "page", "LS1004", "does not know 'page'");
  refused(kSmall + "--json --table", "LS1150", "--json beside --table");
  refused(kSmall + "--fill --json", "LS1150", "--fill=FILE");
  refused(kSmall + "--calibrate runs/x --stack s.toml", "LS1150", "constants of the machine");
  refused(kSmall + "--evidence", "LS1150", "leave --cluster out");
  refused("--runs r.json --model.preset=llama-test", "LS1150", "leave them out");
  refused("--runs r.json", "LS1003", "add --json");
  refused("--runs r.json --evidence --json", "LS1150", "errors are told as tables");
  refused("--runs r.json --evidence=plot.png", "LS1005", ".svg or .md");
  refused(kSmall + "--cluster 8xa100 --what-if", "LS1150", "several clusters are named");
  refused(kSmall + "--slow node=1:0.5", "LS1151", "the nodes are 0 to 0");
  refused(kSmall + "--slow node=0:1.5", "LS1151", "a share of full speed");
  refused(kSmall + "--slow rack=0:0.5", "LS1151", "neither node nor nic");
  refused("--model.preset=llama-test --cluster 8xa100 --fp8", "LS1156", "has no FP8 products");
  refused(kSmall + "--imbalance 1.5", "LS1156", "the model has none");
  refused(kSmall + "--imbalance 0.5", "LS1005", "1 or more");
  refused(kSmall + "--spare 1", "LS1005", "below 1");
  refused(kSmall + "--order dp", "LS1005", "dp-pp");
  refused(kSmall + "--tokens 0", "LS1005", "tokens of the whole run");
  refused(kSmall + "--why-not speed=8", "LS1145", "speed");
}

// A row of arXiv:2104.04473, table 1; its measured time is not in the file and not needed.
TEST(Plan, PublishedRunsAreJudgedByTheirRows) {
  const support::ScopedFolder folder("plan-runs");
  const std::string file = (folder / "runs.json").string();
  write_file(file, R"({"runs": [{"id": "sc21-1.7b", "source": "sc21", "tier": "B", "n_gpus": 32, "gpu": {"name": "A100-SXM4-80GB"},
    "model": {"id": "gpt-1.7b", "layers": 24, "hidden": 2304, "heads": 24, "ffn": 9216, "gated_mlp": false, "vocab": 51200, "seq": 2048},
    "layout": {"tp": 1, "pp": 1, "dp": 32, "global_batch": 512, "precision": "bf16"}}]})");
  const Outcome outcome = run("--runs " + file + " --json");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json json = parse_json(outcome.output, "runs");
  EXPECT_EQ(json["id"], "sc21-1.7b");
  EXPECT_GT(json["step_time_s"], 0);
  EXPECT_GT(json["peak_memory_bytes"], 0);
  EXPECT_LE(json["peak_memory_bytes"], 80 * 1073741824.0);
}

TEST(Plan, WritesAPage) {
  const support::ScopedFolder folder("plan-page");
  const std::string file = (folder / "plan.html").string();
  const Outcome outcome = run(kNodes + "--html " + file);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const std::string page = read_file(file);
  EXPECT_THAT(page, HasSubstr("</html>"));
  EXPECT_THAT(page, HasSubstr("4 nodes of 8xh100"));
  EXPECT_THAT(page, Not(HasSubstr("http://")));
}

}  // namespace
}  // namespace lockstep::apps

#include "lockstep/plan/search/candidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/plan/search/test_search.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using config::Recompute;
using config::ScheduleKind;

TEST(Divisors, AreAllThatDivideAndNoOther) {
  for (int64_t number = 1; number <= 200; ++number) {
    std::vector<int> all;
    for (int i = 1; i <= number; ++i)
      if (number % i == 0) all.push_back(i);
    EXPECT_EQ(divisors(number), all) << number;
  }
  EXPECT_EQ(divisors(16384).size(), 15U);
}

TEST(Candidates, AreSaidInWords) {
  EXPECT_EQ(describe(Candidate{}), "tp 1, pp 1, dp 1, zero 1, micro-batch 1, recompute none");
  EXPECT_EQ(describe(Candidate{.tp = 8, .pp = 4, .dp = 16, .virtual_stages = 2, .recompute = Recompute::kSelective, .schedule = ScheduleKind::kInterleaved}),
            "tp 8, pp 4 (interleaved, 2 virtual stages), dp 16, zero 1, micro-batch 1, recompute selective");
  EXPECT_EQ(describe(Candidate{.tp = 2, .cp = 4, .ep = 8, .etp = 2, .dp = 3, .zero = 3, .micro_batch = 5, .recompute = Recompute::kFull,
                      .sequence_parallel = false, .offload_optimizer = true}),
            "tp 2 (whole rows), pp 1, cp 4, ep 8, etp 2, dp 3, zero 3, micro-batch 5, recompute full, optimizer on the host");
}

std::string error_of(const std::string& text) {
  try {
    parse_fixed(text);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().code, "LS1145") << text;
    return cat(error.message().what, " | ", error.message().way_out);
  }
  ADD_FAILURE() << text << " was read";
  return "";
}

TEST(FixedFields, AreRead) {
  EXPECT_TRUE(parse_fixed("").values.empty());
  EXPECT_TRUE(parse_fixed("  ").values.empty());
  const Fixed fixed = parse_fixed("tp=8, pp = 4,zero=0,recompute=full,schedule=zb-v,sequence_parallel=false,offload_optimizer=1");
  EXPECT_EQ(fixed_whole(fixed, "tp"), 8);
  EXPECT_EQ(fixed_whole(fixed, "pp"), 4);
  EXPECT_EQ(fixed_whole(fixed, "zero"), 0);
  EXPECT_EQ(fixed_whole(fixed, "cp"), std::nullopt);
  EXPECT_EQ(fixed_recompute(fixed), Recompute::kFull);
  EXPECT_EQ(fixed_schedule(fixed), ScheduleKind::kZbV);
  EXPECT_EQ(fixed_switch(fixed, "sequence_parallel"), false);
  EXPECT_EQ(fixed_switch(fixed, "offload_optimizer"), true);
  EXPECT_EQ(fixed_switch(Fixed{}, "offload_optimizer"), std::nullopt);
  EXPECT_EQ(fixed_recompute(Fixed{}), std::nullopt);
}

TEST(FixedFields, EveryFieldOfACandidateHasAName) {
  std::string text;
  for (const WholeField& field : whole_fields()) text += cat(text.empty() ? "" : ",", field.name, "=2");
  const Fixed fixed = parse_fixed(text);
  EXPECT_EQ(fixed.values.size(), whole_fields().size());
  for (const WholeField& field : whole_fields()) EXPECT_EQ(fixed_whole(fixed, field.name), 2) << field.name;
}

TEST(FixedFields, ErrorsNameWhatIsWrongAndAWayOut) {
  using ::testing::HasSubstr;
  EXPECT_EQ(error_of("tpp=8"), "'tpp' is no field of a layout | did you mean 'tp'?");
  EXPECT_THAT(error_of("speed=8"), HasSubstr("'speed' is no field of a layout"));
  EXPECT_EQ(error_of("tp"), "tp has no value | write tp=...");
  EXPECT_EQ(error_of("tp="), "tp has no value | write tp=...");
  EXPECT_THAT(error_of("tp=0"), HasSubstr("tp = 0: a whole number of 1 or more is needed"));
  EXPECT_THAT(error_of("tp=-1"), HasSubstr("tp = -1: a whole number of 1 or more is needed"));
  EXPECT_THAT(error_of("tp=two"), HasSubstr("a whole number of 1 or more is needed"));
  EXPECT_THAT(error_of("tp=2.5"), HasSubstr("a whole number of 1 or more is needed"));
  EXPECT_THAT(error_of("tp=99999999999"), HasSubstr("a whole number of 1 or more is needed"));
  EXPECT_EQ(error_of("zero=4"), "zero = 4: the stages are 0 to 3 | write zero=1");
  EXPECT_THAT(error_of("recompute=some"), HasSubstr("recompute = some is none of none, selective, full"));
  EXPECT_THAT(error_of("schedule=file"), HasSubstr("schedule = file is none of naive"));
  EXPECT_THAT(error_of("offload_optimizer=maybe"), HasSubstr("true or false is needed"));
  EXPECT_EQ(error_of("tp=2,tp=2"), "tp is fixed twice | say it once");
  EXPECT_THAT(error_of("tp=2,,pp=2"), HasSubstr("is no field of a layout"));
}

// The layout that is made of a candidate's configuration is the candidate's.
TEST(WithCandidate, MakesItsLayout) {
  test_search::TestJob job = test_search::test_job({.preset = "mixtral-test", .cluster = "8xh100", .batch = 48, .length = 48});
  job.config.parallel.layers_per_stage.list = {1, 3};
  job.config.parallel.fsdp = true;
  job.config.parallel.dp_shard = 7;
  job.config.parallel.virtual_stages = 5;
  job.config.memory.recompute.list = {Recompute::kNone, Recompute::kFull, Recompute::kNone, Recompute::kFull};
  test_search::Chance chance(21);
  int legal = 0;
  for (int i = 0; i < 600; ++i) {
    const Candidate candidate = chance.candidate();
    const config::RunConfig config = with_candidate(job.config, candidate);
    const auto ranks = static_cast<int>(ranks_of(candidate));
    if (!program::layout_problems(config, job.model, ranks).empty()) continue;
    ++legal;
    const program::Layout layout = program::make_layout(config, job.model, ranks);
    const auto degree = [&](mesh::AxisSet axes) { return layout.mesh.degree(axes); };
    EXPECT_EQ(degree(mesh::Axis::kTp), candidate.tp);
    EXPECT_EQ(degree(mesh::Axis::kCp), candidate.cp);
    EXPECT_EQ(layout.pipeline.ranks, candidate.pp);
    EXPECT_EQ(degree(mesh::Axis::kDpShard) * degree(mesh::Axis::kDpReplicate), candidate.dp);
    EXPECT_EQ(degree(mesh::Axis::kDpShard), candidate.dp_shard());
    EXPECT_EQ(layout.ep, candidate.ep);
    EXPECT_EQ(layout.etp, candidate.etp);
    EXPECT_EQ(layout.zero, candidate.zero);
    EXPECT_EQ(layout.micro_batch, candidate.micro_batch);
    EXPECT_EQ(layout.sequence_parallel, candidate.sequence_parallel);
    EXPECT_EQ(layout.offload.optimizer, candidate.offload_optimizer);
    EXPECT_EQ(layout.recompute, std::vector<Recompute>(4, candidate.recompute));
    if (candidate.pp == 1) continue;
    EXPECT_EQ(layout.pipeline.kind, candidate.schedule);
    EXPECT_EQ(layout.pipeline.virtual_stages, candidate.virtual_stages);
  }
  EXPECT_GT(legal, 5);
}

// Keys that mean nothing beside a candidate would be refused: they go. Those that mean something stay.
TEST(WithCandidate, LeavesOutKeysOfNothing) {
  config::RunConfig config;
  config.parallel.reduce_precision = config::Precision::kBf16;
  config.parallel.post_validation = config::PostValidation::kOn;
  config.parallel.dispatcher = config::Dispatcher::kAllGather;
  config.moe.imbalance_limit = 1.5;
  config.memory.host_limit = {1000};
  config.memory.disk_path = "disk";
  const config::RunConfig alone = with_candidate(config, {});
  EXPECT_EQ(alone.parallel.reduce_precision, config::Precision::kFp32);
  EXPECT_EQ(alone.parallel.post_validation, config::PostValidation::kAuto);
  EXPECT_EQ(alone.parallel.dispatcher, config::Dispatcher::kAllToAll);
  EXPECT_FALSE(alone.moe.imbalance_limit);
  EXPECT_EQ(alone.memory.host_limit.count, 0);
  EXPECT_EQ(alone.memory.disk_path, "");
  const config::RunConfig together = with_candidate(config, {.pp = 2, .ep = 2, .dp = 2, .zero = 1, .offload_optimizer = true});
  EXPECT_EQ(together.parallel.reduce_precision, config::Precision::kBf16);
  EXPECT_EQ(together.parallel.post_validation, config::PostValidation::kOn);
  EXPECT_EQ(together.parallel.dispatcher, config::Dispatcher::kAllGather);
  EXPECT_EQ(together.moe.imbalance_limit, 1.5);
  EXPECT_EQ(together.memory.host_limit.count, 1000);
  EXPECT_EQ(together.memory.disk_path, "disk");
}

}  // namespace
}  // namespace lockstep::plan

// State spaces and hybrids under `verify`: however their heads, groups and sequences lie over ranks, and whatever else is cut beside them, a
// layout computes what one rank computes with whole sequences.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "lockstep/train/test_state_space.h"

namespace lockstep::train {
namespace {

using testing::attention_of_six;
using testing::Case;
using testing::chunk;
using testing::cp;
using testing::ep;
using testing::expect_all_right;
using testing::expect_right;
using testing::Fields;
using testing::hybrid;
using testing::hybrid_experts;
using testing::hybrid_of;
using testing::mamba;
using testing::masked;
using testing::masked_in_place;
using testing::operator+;
using testing::packed;
using testing::pp;
using testing::recompute;
using testing::seq;
using testing::state_heads;
using testing::tp;
using testing::verified;
using testing::zero;

const Fields kPlain = {"parallel.sequence_parallel=false"};
const Fields kMuon = {"optimizer.kind=muon", "optimizer.ns_precision=fp32"};
const Fields kHsdp = {"parallel.zero=3", "parallel.dp_replicate=2", "parallel.dp_shard=2"};
const Fields kDropout = {"model.dropout=0.1"};
const Fields kBf16 = {"train.precision=bf16"};

// Groups of B and C that are cut, and one that all ranks share: its gradients and the squares of the norm are then summed over them.
TEST(VerifyStateSpace, HeadsAndGroupsOverTp) {
  expect_all_right({{2, mamba() + tp(2) + state_heads(4, 2)},
                    {2, mamba() + tp(2) + state_heads(4, 1) + kPlain},
                    {4, mamba() + tp(4) + state_heads(8, 4) + kPlain + kDropout},
                    {4, mamba() + tp(4) + state_heads(4, 1) + seq(15)},
                    {3, mamba() + tp(3) + state_heads(6, 3)},
                    {3, mamba() + tp(3) + state_heads(6, 1) + kPlain + packed()}});
}

TEST(VerifyStateSpace, HybridsOverTp) {
  expect_all_right({{2, hybrid() + tp(2) + packed()},
                    {2, hybrid_experts() + tp(2) + kPlain},
                    {3, hybrid() + tp(3) + state_heads(6, 1) + attention_of_six() + kDropout},
                    {2, hybrid_of("H") + tp(2) + packed()},
                    {4, hybrid() + tp(2) + zero(1) + Fields{"parallel.row_groups=true"}}});
}

TEST(LongVerifyStateSpace, OverTp) {
  for (const Fields& rows : {Fields{}, kPlain})
    for (const Fields& data : {Fields{}, packed(), masked()})
      expect_all_right({{2, mamba() + tp(2) + state_heads(4, 1) + rows + data},
                        {2, hybrid() + tp(2) + rows + data + seq(15)},
                        {4, hybrid_experts() + tp(2) + ep(2) + rows + data},
                        {2, hybrid() + tp(2) + rows + data + Fields{"parallel.overlap=false"}}});
}

// States and the ends of pieces pass from rank to rank; a document begins with a state of zero, wherever it lies.
TEST(VerifyStateSpace, SequencesInParts) {
  expect_all_right({{2, mamba() + cp("ring", 2)},
                    {2, mamba() + cp("ring", 2, "contiguous") + packed()},
                    {4, mamba() + cp("ring", 4) + masked() + kDropout},
                    {2, hybrid() + cp("all_to_all", 2) + packed()},
                    {4, hybrid() + cp("ring", 4, "contiguous") + seq(32)},
                    {2, hybrid_of("HM") + cp("ring", 2) + packed() + kDropout},
                    {4, hybrid_experts() + cp("all_gather", 4) + Fields{"train.global_batch=4"}}});
}

TEST(LongVerifyStateSpace, SequencesInParts) {
  for (const char* kind : {"ring", "all_to_all", "all_gather"})
    for (const char* split : {"zigzag", "contiguous"})
      for (const int ranks : {2, 4})
        for (const Fields& data : {Fields{}, packed(), masked_in_place()})
          expect_all_right({{ranks, hybrid() + cp(kind, ranks, split) + data + seq(32)}});
  for (const char* split : {"zigzag", "contiguous"})
    for (const int ranks : {2, 3, 4})
      expect_all_right({{ranks, mamba() + cp("ring", ranks, split) + seq(24) + packed()}, {ranks, mamba() + cp("ring", ranks, split) + seq(48) + masked_in_place()}});
  expect_all_right({{4, hybrid() + cp("2d", 4) + packed() + seq(32)}, {3, mamba() + cp("ring", 3) + seq(18) + packed()}});
}

// Chunks that do not divide a piece, and one longer than it.
TEST(VerifyStateSpace, OddLengthsAndChunks) {
  expect_all_right({{2, mamba() + cp("ring", 2) + seq(28) + chunk(3)},
                    {2, hybrid() + cp("all_gather", 2, "contiguous") + seq(30) + chunk(1)},
                    {2, mamba() + tp(2) + seq(13) + chunk(5) + masked()},
                    {3, mamba() + cp("ring", 3, "contiguous") + seq(33) + chunk(64) + packed()}});
}

TEST(VerifyStateSpace, SequencesInPartsBesideTp) {
  expect_all_right({{4, mamba() + cp("ring", 2) + tp(2) + state_heads(4, 1) + packed()},
                    {4, hybrid() + cp("all_to_all", 2) + tp(2) + kPlain + masked()}});
}

TEST(LongVerifyStateSpace, SequencesInPartsBesideTp) {
  for (const char* kind : {"ring", "all_gather"})
    for (const char* split : {"zigzag", "contiguous"})
      expect_all_right({{4, mamba() + cp("ring", 2, split) + tp(2) + seq(28) + chunk(4)},
                        {4, hybrid() + cp(kind, 2, split) + tp(2) + kPlain + packed()},
                        {4, hybrid_experts() + cp(kind, 2, split) + tp(2) + ep(4) + packed()}});
}

// A stage of state spaces beside one of attention; layers that differ between the stages of a rank.
TEST(VerifyStateSpace, InStages) {
  expect_all_right({{2, hybrid_of("MMAA") + pp("1f1b") + packed()},
                    {2, hybrid_of("MMWA") + pp("zb-v") + kDropout},
                    {2, hybrid_of("MAMM") + pp("interleaved")},
                    {4, hybrid_of("HMHA", "DDE-") + Fields{"model.experts=4"} + pp("1f1b") + ep(2)},
                    {2, mamba() + pp("zb-h1") + masked()},
                    {4, hybrid_of("MMAA") + pp("1f1b") + tp(2) + packed()},
                    {4, hybrid_of("AMMM") + pp("zb-v") + cp("ring", 2) + packed()}});
}

TEST(LongVerifyStateSpace, InStages) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"})
    expect_all_right({{2, hybrid_of("MMAA") + pp(schedule) + masked()},
                      {4, hybrid_experts() + pp(schedule) + ep(2) + packed()},
                      {4, mamba(4) + pp(schedule) + tp(2) + state_heads(4, 1)}});
  expect_all_right({{2, hybrid_of("MMAA") + pp("zb-h2") + Fields{"parallel.post_validation=on", "optimizer.max_grad_norm=0.05"}}});
}

TEST(VerifyStateSpace, WithStatesSharedOut) {
  expect_all_right({{2, mamba() + zero(1)},
                    {2, hybrid() + zero(2) + packed()},
                    {4, mamba() + zero(3) + kDropout},
                    {2, hybrid() + cp("ring", 2) + zero(3) + packed()},
                    {4, hybrid() + kHsdp + masked()}});
}

TEST(LongVerifyStateSpace, WithStatesSharedOut) {
  for (const int stage : {1, 2, 3})
    expect_all_right({{3, mamba() + zero(stage) + packed() + Fields{"train.global_batch=6"}},
                      {4, hybrid() + tp(2) + zero(stage)},
                      {4, mamba() + tp(2) + state_heads(4, 1) + zero(stage)},
                      {4, hybrid_experts() + zero(stage) + ep(2) + packed()}});
}

TEST(VerifyStateSpace, WithExperts) {
  expect_all_right({{2, hybrid_experts() + ep(2) + packed()},
                    {4, hybrid_experts() + ep(4) + zero(1)},
                    {4, hybrid_experts() + ep(2) + tp(2)},
                    {2, hybrid_experts() + Fields{"model.feed_forwards=E-"} + ep(2)}});
}

// Layers without a mixer, without a feed-forward, without rotation.
TEST(VerifyStateSpace, LayersOfOtherParts) {
  expect_all_right({{2, hybrid_of("MN-A") + tp(2) + packed()}, {2, hybrid_of("MA", "-D") + cp("ring", 2)}, {2, hybrid_of("MN", "D-") + zero(2) + recompute("selective")}});
}

TEST(VerifyStateSpace, WithLessOnTheDevice) {
  expect_all_right({{2, mamba() + recompute("full") + packed() + kDropout},
                    {2, hybrid() + recompute("selective") + cp("ring", 2) + masked()},
                    {2, hybrid() + recompute("full") + tp(2)},
                    {2, mamba() + zero(3) + recompute("full") + Fields{"memory.offload=optimizer,parameters,activations"}}});
}

TEST(LongVerifyStateSpace, WithLessOnTheDevice) {
  for (const char* choice : {"full", "selective"})
    expect_all_right({{2, mamba() + cp("ring", 2) + recompute(choice) + packed()},
                      {4, hybrid_experts() + tp(2) + ep(2) + recompute(choice)},
                      {2, mamba() + tp(2) + state_heads(4, 1) + recompute(choice)},
                      {2, hybrid_of("MMAA") + pp("zb-v") + recompute(choice) + packed()},
                      {2, hybrid() + recompute(choice) + Fields{"memory.offload=optimizer"}}});
}

// The products of a state space are updated as whole matrices; its convolution and what belongs to a head are not.
TEST(VerifyStateSpace, WithMuon) {
  expect_all_right({{2, mamba() + zero(1) + kMuon}, {2, hybrid() + tp(2) + kMuon + packed()}});
}

TEST(LongVerifyStateSpace, WithMuon) {
  expect_all_right({{4, mamba() + tp(2) + state_heads(4, 1) + zero(3) + kMuon},
                    {4, hybrid_experts() + ep(2) + zero(2) + kMuon},
                    {2, hybrid_of("MMAA") + pp("1f1b") + kMuon}});
}

TEST(VerifyStateSpace, InBf16) {
  expect_all_right({{2, mamba() + tp(2) + kBf16}, {2, hybrid() + cp("ring", 2) + kBf16 + packed()}});
}

TEST(LongVerifyStateSpace, InBf16) {
  expect_all_right({{2, mamba() + tp(2) + state_heads(4, 1) + kBf16 + kPlain},
                    {4, hybrid() + cp("all_gather", 4) + seq(32) + kBf16 + masked()}});
}

TEST(VerifyStateSpace, FourAxes) {
  expect_all_right({{8, hybrid_of("MMAA") + cp("ring", 2) + tp(2) + pp("1f1b") + packed()}});
}

TEST(LongVerifyStateSpace, FourAxes) {
  expect_all_right({{8, hybrid_experts() + Fields{"model.mixers=MMWA"} + cp("ring", 2) + tp(2) + pp("zb-v") + ep(4) + packed()},
                    {8, mamba(4) + cp("ring", 2) + tp(2) + pp("1f1b") + state_heads(4, 1) + masked()},
                    {8, hybrid() + cp("all_to_all", 2) + tp(2) + zero(3) + packed()}});
}

// Several sequences of a microbatch, each with documents of its own.
TEST(VerifyStateSpace, SequencesOfOneMicrobatch) {
  const Fields four = {"train.micro_batch=4"};
  expect_all_right({{2, mamba() + cp("ring", 2) + four + packed()}, {2, hybrid() + tp(2) + four + masked() + kDropout}});
}

TEST(VerifyStateSpace, LeftAlone) {
  for (const Fields& layout : {tp(2), cp("ring", 2)})
    expect_right({.ranks = 2, .fields = hybrid() + layout + packed(), .options = {.steps = 4, .free = 3}});
}

// --- What goes wrong. What layers are told of tokens: engine/state_space_mutants_test.cpp; what travels: parallel/context/state_mutants_test.cpp.

// Of the ranks of tp one keeps its part of the gradients so named, as if they were not summed.
VerifyReport with_lost_parts(const Fields& fields, const std::string& ending) {
  EXPECT_TRUE(verified({.ranks = 2, .fields = fields, .options = {.steps = 1, .free = 0}}).ok);
  std::atomic<int> ranks = 0;
  const auto lose = [&](engine::ExecutorOptions& options) {
    if (ranks++ == 0) return;
    options.before_action = [ending](const program::Action& action, engine::ParameterStore& store) {
      if (action.kind != program::ActionKind::kReducePartial) return;
      for (size_t row = 0; row < store.table().size(); ++row)
        if (store.table()[row].name.ends_with(ending)) store.grad(static_cast<int>(row)).zero_();
    };
  };
  return verified({.ranks = 2, .fields = fields, .options = {.steps = 1, .free = 0, .change_layout = lose}});
}

TEST(VerifyStateSpace, GradientsThatAreNotSummedOverTp) {
  for (const char* name : {".ssm.b.weight", ".ssm.c.weight", ".ssm.conv_b.weight", ".ssm.conv_c.weight", ".ssm.a_log.weight", ".ssm.d.weight",
                           ".ssm.dt_bias.weight"}) {
    SCOPED_TRACE(name);
    const VerifyReport report = with_lost_parts(mamba() + tp(2) + state_heads(4, 1), name);
    EXPECT_FALSE(report.ok);
    ASSERT_EQ(report.steps.size(), 1U);
    EXPECT_TRUE(report.steps[0].worst_gradient.ends_with(name)) << report.steps[0].worst_gradient;
    EXPECT_GT(report.steps[0].max_gradient_error, 1e-2);
    EXPECT_NEAR(report.steps[0].loss, report.steps[0].reference_loss, 1e-5 * report.steps[0].reference_loss) << "no loss has it";
  }
}

}  // namespace
}  // namespace lockstep::train

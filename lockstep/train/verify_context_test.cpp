// Context parallelism and packed documents under `verify`: however sequences lie over ranks, and whatever else is cut beside them, a layout
// computes what one rank computes with whole sequences.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/train/test_context.h"

namespace lockstep::train {
namespace {

using testing::Case;
using testing::cp;
using testing::ep;
using testing::expect_all_right;
using testing::expect_right;
using testing::Fields;
using testing::masked;
using testing::masked_in_place;
using testing::model;
using testing::operator+;
using testing::packed;
using testing::pp;
using testing::recompute;
using testing::seq;
using testing::tp;
using testing::verified;
using testing::zero;

const Fields kPlain = {"parallel.sequence_parallel=false"};
const Fields kMuon = {"optimizer.kind=muon", "optimizer.ns_precision=fp32"};
const Fields kHsdp = {"parallel.zero=3", "parallel.dp_replicate=2", "parallel.dp_shard=2"};
const Fields kDropout = {"model.dropout=0.1"};

// Each kind x split x family, as a stream and packed: 64 layouts, of which `first` and every fourth from it.
std::vector<Case> matrix(size_t first, size_t step) {
  std::vector<Case> all;
  for (const char* kind : {"ring", "all_to_all", "all_gather", "2d"})
    for (const char* split : {"zigzag", "contiguous"})
      for (const char* family : {"gpt2", "llama", "mixtral", "deepseek"})
        for (const bool documents : {false, true}) {
          const int ranks = std::string(kind) == "2d" ? 4 : 2;
          all.push_back({ranks, model(family) + cp(kind, ranks, split) + (documents ? packed() : Fields{})});
        }
  std::vector<Case> some;
  for (size_t i = first; i < all.size(); i += step) some.push_back(all[i]);
  return some;
}

// 0, 5, 10, ...: each kind with each family, each split with and without documents.
TEST(VerifyContext, EveryKindSplitAndFamily) { expect_all_right(matrix(0, 5)); }

TEST(LongVerifyContext, EveryKindSplitAndFamily) {
  for (const size_t first : {1, 2, 3, 4}) expect_all_right(matrix(first, 5));
}

// Pieces that do not divide, 15 tokens over 4 of them; 9 over 8, of which three have none that counts.
TEST(VerifyContext, OddLengths) {
  expect_all_right({{2, model("gpt2") + cp("ring", 2) + seq(15) + kDropout},
                    {3, model("llama") + cp("all_gather", 3) + seq(17) + masked()},
                    {4, model("gpt2") + cp("ring", 4) + seq(9) + masked_in_place()},
                    {3, model("llama") + cp("all_to_all", 3, "contiguous") + seq(13) + packed() + kDropout}});
}

TEST(LongVerifyContext, OddLengths) {
  for (const char* kind : {"ring", "all_to_all", "all_gather"})
    expect_all_right({{2, model("llama") + cp(kind, 2, "contiguous") + seq(15) + kDropout},
                      {3, model("gpt2") + cp(kind, 3) + seq(19) + packed()},
                      {4, model("llama") + cp(kind, 4) + seq(13) + masked()},
                      {4, model("gpt2") + cp(kind, 4, "contiguous") + seq(7)},
                      {4, model("llama") + cp(kind, 4) + seq(9) + packed()}});
  expect_all_right({{4, model("gpt2") + cp("2d", 4) + seq(15) + packed() + kDropout},
                    {4, model("llama") + cp("2d", 4, "contiguous") + seq(11) + masked_in_place()}});
}

// Experts take whole pieces alone.
TEST(VerifyContext, ThreeAndFourRanksWithExperts) {
  expect_all_right({{3, model("mixtral") + cp("ring", 3) + seq(18) + Fields{"train.global_batch=4"}},
                    {4, model("deepseek") + cp("all_gather", 4) + masked() + Fields{"train.global_batch=4"}}});
}

// 12 heads over 8 ranks, 6 over 4; fewer key/value heads than ranks, and as many as do not divide by them.
TEST(VerifyContext, HeadsThatDoNotDivide) {
  const Fields six = {"model.heads=6"}, one_kv = {"model.kv_heads=1"}, two_kv = {"model.kv_heads=2"}, three_kv = {"model.kv_heads=3"};
  expect_all_right({{4, model("gpt2") + cp("all_to_all", 4) + six + packed()},
                    {4, model("llama") + cp("all_to_all", 4) + one_kv},
                    {4, model("llama") + cp("all_to_all", 4) + two_kv + masked() + seq(15)},
                    {2, model("llama") + cp("all_to_all", 2) + three_kv + kDropout},
                    {3, model("deepseek") + cp("all_to_all", 3) + seq(18)}});
}

TEST(LongVerifyContext, HeadsThatDoNotDivide) {
  const Fields one_kv = {"model.kv_heads=1"}, two_kv = {"model.kv_heads=2"};
  expect_all_right({{8, model("gpt2") + cp("all_to_all", 8) + packed()},
                    {8, model("llama") + cp("2d", 8) + two_kv + packed()},
                    {4, model("llama") + cp("2d", 4) + one_kv + seq(15)},
                    {8, model("llama") + cp("all_to_all", 4) + tp(2) + two_kv},  // 6 heads and one key/value head here
                    {8, model("gpt2") + cp("all_to_all", 4) + tp(2) + kPlain + masked()}});
  for (const char* kind : {"ring", "all_gather"})
    expect_all_right({{4, model("llama") + cp(kind, 4) + one_kv + packed()}});
}

TEST(VerifyContext, BesideTensorParallelism) {
  expect_all_right({{4, model("llama") + cp("ring", 2) + tp(2) + packed() + kDropout},
                    {4, model("gpt2") + cp("all_to_all", 2) + tp(2) + kPlain + masked()},
                    {4, model("deepseek") + cp("ring", 2) + tp(2) + packed()},
                    {4, model("llama") + cp("all_gather", 2, "contiguous") + tp(2) + seq(15) + zero(1) + Fields{"parallel.row_groups=true"}}});
}

TEST(LongVerifyContext, BesideTensorParallelism) {
  for (const char* kind : {"ring", "all_to_all", "all_gather"})
    expect_all_right({{4, model("gpt2") + cp(kind, 2) + tp(2) + seq(15) + kDropout},
                      {4, model("llama") + cp(kind, 2, "contiguous") + tp(2) + kPlain + packed()},
                      {4, model("mixtral") + cp(kind, 2) + tp(2) + ep(4) + packed()},
                      {4, model("deepseek") + cp(kind, 2) + tp(2) + kPlain + ep(2) + masked()},
                      {4, model("llama") + cp(kind, 2) + tp(2) + Fields{"parallel.overlap=false"}}});
  expect_all_right({{8, model("llama") + cp("2d", 4) + tp(2) + packed()}});
}

// States lie over dp_shard x cp.
TEST(VerifyContext, WithStatesSharedOut) {
  expect_all_right({{2, model("llama") + cp("ring", 2) + zero(1) + packed()},
                    {2, model("gpt2") + cp("all_to_all", 2) + zero(2) + kDropout},
                    {4, model("llama") + cp("ring", 2) + zero(3) + masked() + seq(15)},
                    {4, model("mixtral") + cp("all_gather", 2) + zero(3) + ep(2)},
                    {4, model("gpt2") + cp("ring", 2)}});
}

TEST(LongVerifyContext, WithStatesSharedOut) {
  for (const int stage : {1, 2, 3})
    expect_all_right({{3, model("gpt2") + cp("all_gather", 3) + zero(stage) + packed()},
                      {4, model("llama") + cp("2d", 4) + zero(stage) + masked()},
                      {4, model("deepseek") + cp("ring", 2) + zero(stage) + ep(2) + packed()}});
  expect_all_right({{8, model("llama") + cp("ring", 2) + kHsdp + packed() + kDropout}, {8, model("mixtral") + cp("all_to_all", 2) + kHsdp + ep(4)}});
}

TEST(VerifyContext, InStages) {
  expect_all_right({{4, model("llama") + cp("ring", 2) + pp("1f1b") + packed()},
                    {4, model("gpt2") + cp("all_to_all", 2) + pp("zb-v") + kDropout},
                    {4, model("llama") + cp("all_gather", 2) + pp("interleaved") + masked() + seq(15)}});
}

TEST(LongVerifyContext, InStages) {
  for (const char* schedule : {"gpipe", "zb-h1", "zb-v", "dualpipe-v"})
    expect_all_right({{4, model("deepseek") + cp("ring", 2) + pp(schedule) + packed()},
                      {4, model("mixtral") + cp("all_gather", 2) + pp(schedule) + ep(2) + masked()}});
  expect_all_right({{4, model("llama") + cp("ring", 2) + pp("zb-h2") + packed() +
                            Fields{"parallel.post_validation=on", "optimizer.max_grad_norm=0.05"}},
                    {4, model("llama") + cp("ring", 2) + pp("1f1b") + zero(2) + packed()},
                    {8, model("gpt2") + cp("2d", 4) + pp("1f1b") + packed()}});
}

// Experts lie over the ranks of cp as over those of dp.
TEST(VerifyContext, ExpertsFoldedOverIt) {
  expect_all_right({{2, model("mixtral") + cp("ring", 2) + ep(2) + packed()},
                    {2, model("deepseek") + cp("all_to_all", 2) + ep(1, 2)},
                    {4, model("mixtral") + cp("ring", 2) + ep(4) + Fields{"moe.capacity_factor=0.75"}},
                    {4, model("deepseek") + cp("2d", 4) + ep(2, 2) + Fields{"moe.balance=bias"}}});
}

TEST(LongVerifyContext, ExpertsFoldedOverIt) {
  const Fields drops = {"moe.capacity_factor=0.75"}, last = {"moe.scope=last_step"}, choice = {"model.router=expert_choice", "moe.balance=none"};
  for (const char* kind : {"ring", "all_gather"})
    expect_all_right({{4, model("mixtral") + cp(kind, 2) + ep(2) + drops + packed()},
                      {4, model("mixtral") + cp(kind, 2) + ep(2, 2) + last},
                      {2, model("mixtral") + cp(kind, 2) + ep(2) + choice},
                      {4, model("deepseek") + cp(kind, 4, "contiguous") + ep(4) + Fields{"moe.balance=bias"} + masked()},
                      {4, model("mixtral") + cp(kind, 2) + ep(4) + Fields{"parallel.dispatcher=all_gather"}},
                      {4, model("mixtral") + cp(kind, 2) + ep(2) + Fields{"parallel.overlap_experts=true"}}});
}

TEST(VerifyContext, WithLessOnTheDevice) {
  expect_all_right({{2, model("llama") + cp("ring", 2) + recompute("full") + packed() + kDropout},
                    {2, model("gpt2") + cp("all_to_all", 2) + recompute("selective") + masked()},
                    {2, model("deepseek") + cp("ring", 2) + recompute("selective") + packed()},
                    {2, model("llama") + cp("all_gather", 2) + zero(3) + recompute("full") + packed() +
                            Fields{"memory.offload=optimizer,parameters,activations"}}});
}

TEST(LongVerifyContext, WithLessOnTheDevice) {
  for (const char* choice : {"full", "selective"})
    expect_all_right({{2, model("gpt2") + cp("all_gather", 2) + recompute(choice) + packed()},
                      {4, model("llama") + cp("2d", 4) + recompute(choice) + kDropout},
                      {2, model("deepseek") + cp("all_to_all", 2) + recompute(choice) + ep(2)},
                      {4, model("mixtral") + cp("ring", 2) + tp(2) + recompute(choice) + packed()},
                      {2, model("llama") + cp("ring", 2) + recompute(choice) + Fields{"memory.offload=optimizer"}}});
}

TEST(VerifyContext, WithMuon) {
  expect_all_right({{2, model("llama") + cp("ring", 2) + kMuon + packed()}, {4, model("gpt2") + cp("all_to_all", 2) + zero(1) + kMuon}});
}

TEST(LongVerifyContext, WithMuon) {
  expect_all_right({{4, model("mixtral") + cp("ring", 2) + ep(2) + zero(3) + kMuon + packed()},
                    {4, model("deepseek") + cp("all_gather", 2) + tp(2) + ep(2) + kMuon},
                    {4, model("llama") + cp("2d", 4) + zero(2) + kMuon + masked()}});
}

TEST(VerifyContext, FourAxes) {
  expect_all_right({{8, model("llama") + cp("ring", 2) + tp(2) + pp("1f1b") + packed()}});
}

TEST(LongVerifyContext, FourAxes) {
  expect_all_right({{8, model("gpt2") + cp("all_to_all", 2) + tp(2) + pp("zb-h1") + kDropout + packed()},
                    {8, model("mixtral") + cp("ring", 2) + tp(2) + pp("1f1b") + ep(4) + packed()},
                    {8, model("deepseek") + cp("all_gather", 2) + tp(2) + pp("zb-v") + ep(2) + masked()},
                    {8, model("llama") + cp("ring", 2) + pp("interleaved") + zero(2) + packed()},
                    {8, model("llama") + cp("ring", 2) + tp(2) + zero(3) + masked() + seq(15)},
                    {8, model("mixtral") + cp("2d", 4) + zero(3) + ep(4) + packed()},
                    {8, model("gpt2") + cp("ring", 4) + pp("zb-v") + seq(15) + packed()}});
}

// Sums of blocks are merged in fp32; what travels is rounded once.
TEST(VerifyContext, InBf16) {
  const Fields bf16 = {"train.precision=bf16"};
  expect_all_right({{2, model("llama") + cp("ring", 2) + bf16 + packed()}, {2, model("gpt2") + cp("all_to_all", 2) + bf16}});
}

TEST(LongVerifyContext, InBf16) {
  const Fields bf16 = {"train.precision=bf16"};
  for (const char* kind : {"ring", "all_to_all", "all_gather", "2d"})
    expect_all_right({{4, model("llama") + cp(kind, 4) + bf16 + masked()}, {4, model("deepseek") + cp(kind, 4) + bf16 + packed()}});
}

// Several sequences of a microbatch, each with documents of its own, whose tokens lie over ranks as their work wants it.
TEST(VerifyContext, SequencesOfOneMicrobatch) {
  const Fields four = {"train.micro_batch=4"};
  for (const char* kind : {"ring", "all_to_all", "all_gather"})
    expect_all_right({{2, model("llama") + cp(kind, 2) + four + packed() + kDropout}});
}

// With one rank of cp: documents alone, beside what else is cut.
TEST(VerifyPackedDocuments, OverOtherAxes) {
  expect_all_right({{2, model("gpt2") + packed() + kDropout},
                    {2, model("llama") + masked() + tp(2) + seq(15)},
                    {2, model("deepseek") + packed() + tp(2)},
                    {2, model("mixtral") + masked_in_place() + ep(2)},
                    {2, model("llama") + packed() + pp("zb-v") + recompute("full")},
                    {2, model("llama") + packed() + zero(3) + recompute("selective")}});
}

TEST(VerifyContext, LeftAlone) {
  for (const Fields& data : {Fields{}, packed()})
    expect_right({.ranks = 2, .fields = model("llama") + cp("ring", 2) + data, .options = {.steps = 4, .free = 3}});
}

// --- What goes wrong. What layers are told of tokens: engine/context_mutants_test.cpp; what travels: parallel/context/mutants_test.cpp.

VerifyReport broken(const std::function<void(engine::ExecutorOptions&)>& change) {
  const Fields all = model("llama") + cp("ring", 2) + packed();
  EXPECT_TRUE(verified({.ranks = 2, .fields = all, .options = {.steps = 1, .free = 0}}).ok);
  VerifyReport report = verified({.ranks = 2, .fields = all, .options = {.steps = 1, .free = 0, .change_layout = change}});
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.steps.size(), 1U);
  return report;
}

// All gradients, once they have been summed: a mean over the ranks of cp.
TEST(VerifyContext, GradientsDividedByRanks) {
  const VerifyReport report = broken([](engine::ExecutorOptions& options) {
    options.before_action = [](const program::Action& action, engine::ParameterStore& store) {
      if (action.kind != program::ActionKind::kNorm) return;
      for (size_t row = 0; row < store.table().size(); ++row) store.grad(static_cast<int>(row)).mul_(0.5);
    };
  });
  EXPECT_NEAR(report.steps[0].max_gradient_error, 0.5, 1e-3);
  EXPECT_NEAR(report.steps[0].loss, report.steps[0].reference_loss, 1e-5 * report.steps[0].reference_loss) << "no loss has it";
}

// The gradient of keys alone, as dK of one rank of two that is lost.
TEST(VerifyContext, GradientOfKeysOfAPart) {
  const VerifyReport report = broken([](engine::ExecutorOptions& options) {
    options.before_action = [](const program::Action& action, engine::ParameterStore& store) {
      if (action.kind != program::ActionKind::kNorm) return;
      for (size_t row = 0; row < store.table().size(); ++row)
        if (store.table()[row].name == "blocks.1.attention.k.weight") store.grad(static_cast<int>(row)).mul_(0.999);
    };
  });
  EXPECT_EQ(report.steps[0].worst_gradient, "blocks.1.attention.k.weight");
}

}  // namespace
}  // namespace lockstep::train

// Experts under `verify`: every way to share them out computes what one rank computes, and what goes wrong with them is found.
// No count of tokens, no loss and no capacity may depend on ranks or microbatches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/train/test_verify.h"

namespace lockstep::train {
namespace {

using engine::ExecutorOptions;
using engine::ParameterStore;
using program::Action;
using program::ActionKind;
using testing::expect_right;
using testing::failures;
using testing::verified;
using ::testing::Contains;
using ::testing::HasSubstr;

using Fields = std::vector<std::string>;

Fields operator+(Fields a, const Fields& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Fields kMixtral = {"model.preset=mixtral-test", "model.layers=2", "model.experts=4", "model.experts_per_token=2",
                         "moe.z_coefficient=0.01"};
const Fields kSoftmax = {"model.router=softmax"};
const Fields kDrops = {"moe.capacity_factor=0.75"};
const Fields kDropsLast = {"model.router=softmax", "moe.capacity_factor=0.75", "moe.drop=position"};
const Fields kSigmoid = {"model.router=sigmoid", "model.experts=8",      "model.router_groups=4",  "model.router_top_groups=2",
                         "model.shared_experts=1", "model.dense_layers=1", "model.routed_scale=2.5"};
const Fields kBias = kSigmoid + Fields{"moe.balance=bias"};
const Fields kBiasDrops = kBias + kDrops;
const Fields kChoice = {"model.router=expert_choice", "moe.balance=none", "moe.capacity_factor=0.75"};

const Fields kTp = {"parallel.tp=2"}, kPlainTp = {"parallel.tp=2", "parallel.sequence_parallel=false"};

Fields ep(int ranks, int etp = 1) { return {cat("parallel.ep=", ranks), cat("parallel.etp=", etp)}; }
Fields zero(int stage) { return {cat("parallel.zero=", stage)}; }
Fields micro(int sequences) { return {cat("train.micro_batch=", sequences)}; }
Fields pp(const char* schedule) { return {"parallel.pp=2", cat("parallel.schedule=", schedule), "model.layers=4"}; }

struct Case {
  int ranks = 2;
  Fields fields{};
};

// Two steps: the second begins with slots, and with a bias that has moved.
void expect_all_right(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    SCOPED_TRACE(cat(one.ranks, " ranks ", join(one.fields, " ")));
    expect_right({.ranks = one.ranks, .fields = kMixtral + one.fields, .options = {.steps = 2, .free = 0}});
  }
}

// dp = ep, or several times that; microbatches of 1, 2 and 4 sequences.
TEST(VerifyExperts, OverDataParallelRanks) {
  expect_all_right({{2, ep(2)},
                    {2, ep(2) + kSoftmax + micro(2)},
                    {2, ep(2) + kDrops + micro(4)},
                    {2, ep(2) + kDropsLast},
                    {2, ep(2) + kSigmoid + micro(2)},
                    {2, ep(2) + kBias},
                    {2, ep(2) + kBiasDrops + micro(4)},
                    {2, ep(2) + kChoice + micro(2)},
                    {4, ep(4)},
                    {4, ep(4) + kBias + micro(2)},
                    {4, ep(2) + kDrops},
                    {3, ep(1) + Fields{"train.global_batch=9"}}});
}

// Each routes its own rows, or with sequence parallelism off its share of what all have.
TEST(VerifyExperts, OverTensorParallelRanks) {
  expect_all_right({{2, kTp + ep(2)},
                    {2, kPlainTp + ep(2) + kDrops + micro(4)},
                    {2, kTp + ep(2) + kBias + micro(2)},
                    {2, kPlainTp + ep(1) + kBias},
                    {2, kTp + ep(1) + kChoice},
                    {4, kTp + ep(2) + kChoice},
                    {4, kTp + ep(4) + kDropsLast + micro(2)},
                    {4, kTp + ep(2) + Fields{"parallel.row_groups=true", "parallel.zero=1"}},
                    {2, kTp + ep(2) + Fields{"train.seq_len=15", "train.micro_batch=1"}}});  // 15 rows, cut in 8 and 7
}

// etp other than tp, in both directions.
TEST(VerifyExperts, CutOverRanks) {
  expect_all_right({{2, kTp + ep(1, 2)},
                    {2, kPlainTp + ep(1, 2) + kDropsLast},
                    {2, ep(1, 2) + kDrops + micro(2)},
                    {4, ep(2, 2) + kBias},
                    {4, kTp + ep(2, 2) + kBiasDrops},
                    {4, kTp + ep(1, 4) + micro(4)},
                    {4, kTp + ep(1, 2) + zero(1) + kChoice}});
}

TEST(VerifyExperts, WithStatesSharedOut) {
  const Fields hsdp = {"parallel.dp_replicate=2", "parallel.dp_shard=2"};
  expect_all_right({{4, ep(2) + zero(1)},
                    {4, ep(2) + zero(2) + kDrops},
                    {4, ep(2) + zero(3) + kBias + micro(2)},
                    {4, ep(4) + zero(3)},  // each expert on one rank: dense parameters have four shards, experts one
                    {4, ep(2) + zero(3) + hsdp},
                    {8, ep(2) + zero(3) + Fields{"parallel.dp_replicate=2", "parallel.dp_shard=4"} + kDropsLast},
                    {4, kTp + ep(1, 2) + zero(3) + kBias},
                    {4, kTp + ep(4) + zero(2)}});
}

TEST(VerifyExperts, InStages) {
  expect_all_right({{4, pp("1f1b") + ep(2)},
                    {4, pp("gpipe") + ep(2) + kDrops + micro(2)},
                    {4, pp("interleaved") + ep(2) + kBias},
                    {4, pp("zb-h1") + ep(2) + kDropsLast},
                    {4, pp("zb-v") + ep(2) + kChoice},
                    {4, pp("dualpipe-v") + ep(2) + kBiasDrops},
                    {4, pp("naive") + ep(2) + kSoftmax + micro(4)},
                    {4, pp("zb-h2") + ep(2) + Fields{"parallel.post_validation=on", "optimizer.max_grad_norm=0.05"}},
                    {4, pp("1f1b") + kTp + ep(2)},
                    {4, pp("zb-h1") + kPlainTp + ep(1, 2) + kBias},
                    {4, pp("1f1b") + ep(2) + zero(2) + kDrops}});
}

// Blocks in parts, two microbatches in turns.
TEST(VerifyExperts, WithExchangesBesideOtherWork) {
  const Fields overlap = {"parallel.overlap_experts=true"};
  expect_all_right({{2, overlap + ep(2) + kDrops},
                    {2, overlap + kTp + ep(2) + kBias},
                    {4, overlap + kPlainTp + ep(2, 2) + kSigmoid + zero(1)},
                    {2, overlap + ep(2) + kChoice + Fields{"memory.recompute=full"}},
                    {4, overlap + pp("interleaved") + ep(2) + kBiasDrops},
                    {4, overlap + pp("zb-v") + ep(2) + kSigmoid},
                    {4, overlap + pp("dualpipe-v") + ep(2) + kDropsLast},
                    {8, overlap + pp("dualpipe-v") + kTp + ep(2) + zero(2)}});
}

TEST(VerifyExperts, OverEightRanks) {
  expect_all_right({{8, pp("1f1b") + kTp + ep(4)},
                    {8, pp("zb-h1") + kTp + ep(2, 2) + zero(1) + kBias},
                    {8, pp("interleaved") + kTp + ep(2) + zero(3) + kDrops},
                    {8, pp("zb-v") + kPlainTp + ep(4) + zero(1) + kBiasDrops}});
}

TEST(VerifyExperts, WithLessOnTheDevice) {
  expect_all_right({{2, ep(2) + kDrops + Fields{"memory.recompute=full"}},
                    {2, kTp + ep(2) + kBias + Fields{"memory.recompute=full"}},
                    {2, kPlainTp + ep(2) + kBiasDrops + Fields{"memory.recompute=selective"}},
                    {2, ep(2) + zero(1) + Fields{"memory.offload=optimizer"}},
                    {4, ep(2) + zero(3) + kBias + Fields{"memory.offload=optimizer,parameters,activations", "memory.recompute=full"}}});
}

std::string grid_file() {
  testing::write_tokens();  // makes the folder
  const std::filesystem::path file = testing::folder() / "1f1b.csv";
  write_file(file, "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
  return file.string();
}

// One way to spare memory or time beside another.
TEST(VerifyExperts, InStagesWithLessOnTheDevice) {
  expect_all_right({{4, pp("1f1b") + ep(2) + kBias + Fields{"memory.recompute=full"}},
                    {4, pp("1f1b") + ep(2) + kDrops + Fields{"memory.offload=optimizer"}},
                    {4, pp(cat("file:", grid_file()).c_str()) + ep(2)},
                    {2, ep(2) + Fields{"moe.static_buffers=true", "parallel.overlap_experts=true"}}});
}

// Where two scores lie close together a token may go to another expert than with one rank (judge_loads of verify.cpp): counts are held in
// fp32 alone, all else within what bf16 rounds.
TEST(VerifyExperts, InBf16) {
  const Fields bf16 = {"train.precision=bf16"};
  expect_all_right({{2, ep(2) + bf16}, {2, kTp + ep(2) + bf16}, {4, ep(2) + zero(3) + bf16}});
}

// Whole matrices: experts stand whole on a rank.
TEST(VerifyExperts, WithMuon) {
  const Fields muon = {"optimizer.kind=muon", "optimizer.ns_precision=fp32"};
  expect_all_right({{2, ep(2) + muon}, {2, kTp + ep(2) + kBias + muon}, {4, pp("1f1b") + ep(2) + muon}});
}

// Matrices of experts that no rank has whole: cut over etp, shared out over edp, both; some experts without a token in a step.
TEST(VerifyExperts, WithMuonOfPieces) {
  const Fields muon = {"optimizer.kind=muon", "optimizer.ns_precision=fp32"}, bf16 = {"optimizer.kind=muon"};
  const Fields hsdp = {"parallel.dp_replicate=2", "parallel.dp_shard=2"};
  const Fields few = {"model.experts=32", "model.experts_per_token=1", "model.router=softmax", "train.seq_len=4", "train.global_batch=4"};
  const Fields routers = {"optimizer.rules=class=router optimizer=muon", "parallel.row_groups=true"};
  expect_all_right({{2, ep(1, 2) + muon},
                    {2, kTp + ep(1, 2) + kBias + bf16},
                    {4, kTp + ep(2, 2) + kDrops + muon},
                    {4, ep(2) + zero(1) + muon},
                    {4, ep(2) + zero(2) + kBias + bf16},
                    {4, ep(2) + zero(3) + kDrops + muon},
                    {4, ep(1, 2) + zero(3) + hsdp + muon},
                    {2, kTp + ep(1) + zero(1) + muon},
                    {4, kTp + ep(1, 2) + zero(2) + kBiasDrops + muon},
                    {4, kTp + ep(2) + zero(1) + routers + muon},
                    {4, pp("1f1b") + ep(1, 2) + muon},
                    {8, pp("zb-h1") + kTp + ep(2) + zero(1) + kBias + muon},
                    {4, ep(2) + zero(3) + muon + Fields{"memory.offload=optimizer,parameters"}},
                    {4, ep(1, 2) + zero(1) + few + muon}});
}

// More experts than assignments of a sequence: most have a gradient of zero, and take part in everything.
TEST(VerifyExperts, WithoutTokens) {
  const Fields few = {"model.experts=32", "model.experts_per_token=1", "model.router=softmax", "train.seq_len=4", "train.global_batch=4"};
  expect_all_right({{4, ep(4) + few}, {4, kTp + ep(2) + zero(3) + few}});
}

// The whole batch of the step before: its loads are those of all ranks, microbatches and stages.
TEST(VerifyExperts, JudgedByTheLastStep) {
  const Fields last = {"moe.scope=last_step"}, drops = last + kDrops;
  expect_all_right({{2, ep(2) + last},
                    {2, ep(2) + drops + micro(4)},
                    {2, kTp + ep(2) + last},
                    {2, kPlainTp + ep(1, 2) + drops},
                    {4, kTp + ep(4) + last + kSigmoid},
                    {4, kTp + ep(2) + zero(1) + kBiasDrops + last},
                    {4, ep(2) + zero(3) + last + Fields{"memory.recompute=full"}},
                    {4, pp("1f1b") + ep(2) + last},
                    {4, pp("zb-v") + ep(2) + drops},
                    {4, pp("zb-h2") + kTp + ep(2) + last}});
  for (const Fields& how : {last, drops})
    expect_right({.ranks = 2, .fields = kMixtral + ep(2) + how, .options = {.steps = 4, .free = 3}});
}

TEST(VerifyExperts, LeftAlone) {
  for (const Fields& router : {Fields{}, kDrops, kBias})
    expect_right({.ranks = 4, .fields = kMixtral + ep(2) + router, .options = {.steps = 4, .free = 3}});
}

// However rows travel; with a limit so low that the layer runs in rounds, in action B, in I and W, and when it is computed again.
TEST(VerifyExperts, HoweverTokensTravel) {
  const Fields gathered = {"parallel.dispatcher=all_gather"}, nodes = {"parallel.dispatcher=hierarchical", "parallel.ranks_per_node=2"};
  const Fields fixed = {"moe.static_buffers=true"}, limited = {"moe.imbalance_limit=1"};
  const Fields full = {"memory.recompute=full"};
  expect_all_right({{2, ep(2) + gathered},
                    {2, kTp + ep(2) + gathered + kBias + micro(2)},
                    {2, ep(1, 2) + gathered + kDrops},
                    {4, ep(2) + gathered + zero(3) + kDropsLast},
                    {4, kTp + ep(2) + gathered + kChoice},
                    {4, pp("zb-h1") + ep(2) + gathered + kBias},
                    {4, ep(4) + nodes},
                    {4, ep(2, 2) + nodes + kBias},
                    {4, kTp + ep(4) + nodes + kDrops + full},
                    {4, kPlainTp + ep(2, 2) + nodes + kChoice},
                    {8, ep(4, 2) + nodes + kBiasDrops},
                    {8, pp("1f1b") + kTp + ep(4) + nodes + zero(1)},
                    {2, ep(2) + fixed},
                    {2, kTp + ep(2) + fixed + kDrops + micro(4)},
                    {4, ep(2, 2) + fixed + kBiasDrops},
                    {4, pp("zb-v") + ep(2) + fixed + kChoice},
                    {2, ep(2) + limited},
                    {2, kTp + ep(2) + limited + kBias + full},
                    {4, ep(2, 2) + limited + kDrops + Fields{"memory.recompute=selective"}},
                    {4, pp("zb-h1") + ep(2) + limited + kBias},
                    {4, ep(4) + limited + zero(2) + gathered},
                    {4, pp("1f1b") + ep(2) + limited + gathered},
                    {4, ep(4) + limited + nodes + kBias}});
}

// --- What goes wrong.

using Change = std::function<void(ExecutorOptions&)>;

VerifyReport broken(int ranks, const Fields& fields, const Change& change) {
  VerifyReport report = verified({.ranks = ranks, .fields = kMixtral + fields, .options = {.steps = 1, .free = 0, .change_layout = change}});
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.steps.size(), 1U);
  return report;
}

// Every gradient of that name, once it has been summed.
Change of_gradients(const std::string& name, const std::function<void(const at::Tensor&)>& change) {
  return [=](ExecutorOptions& options) {
    options.before_action = [=](const Action& action, ParameterStore& store) {
      if (action.kind != ActionKind::kNorm) return;
      for (size_t row = 0; row < store.table().size(); ++row)
        if (store.table()[row].name.find(name) != std::string::npos) change(store.grad(static_cast<int>(row)));
    };
  };
}

// This rank's gradients of all its experts.
std::vector<at::Tensor> expert_gradients(ParameterStore& store) {
  std::vector<at::Tensor> gradients;
  for (size_t unit = 0; unit < store.layout().units.size(); ++unit)
    if (store.layout().units[unit].group == arch::ParameterGroup::kExperts) gradients.push_back(store.grad_part(unit));
  return gradients;
}

// Makes a tensor of each rank, which is a thread, the sum of all.
class SumOfRanks {
 public:
  explicit SumOfRanks(int ranks) : all_(ranks) {}
  void operator()(const at::Tensor& mine) {
    {
      const std::lock_guard lock(mutex_);
      sum_ = sum_.defined() ? sum_.add(mine) : mine.clone();
    }
    all_.arrive_and_wait();
    mine.copy_(sum_);
    all_.arrive_and_wait();
    {
      const std::lock_guard lock(mutex_);
      sum_ = at::Tensor();
    }
    all_.arrive_and_wait();
  }

 private:
  std::barrier<> all_;
  std::mutex mutex_;
  at::Tensor sum_;
};

// Over dp, whose ranks hold other experts, instead of edp.
TEST(VerifyExperts, ExpertGradientsSummedOverOtherExperts) {
  SumOfRanks sum(2);
  const auto over_dp = [&](ExecutorOptions& options) {
    options.before_action = [&](const Action& action, ParameterStore& store) {
      if (action.kind != ActionKind::kNorm) return;
      for (const at::Tensor& gradient : expert_gradients(store)) sum(gradient);
    };
  };
  const VerifyReport report = broken(2, ep(2), over_dp);
  EXPECT_THAT(report.steps[0].worst_gradient, HasSubstr(".experts."));
}

TEST(VerifyExperts, AuxiliaryLossDividedByRanks) {
  const VerifyReport report =
      broken(2, ep(2), [](ExecutorOptions& options) { options.layout.moe.aux_coefficient /= 2; });
  EXPECT_GT(report.steps[0].max_gradient_error, report.tolerances.gradient);
  EXPECT_NEAR(report.steps[0].loss, report.steps[0].reference_loss, 1e-5) << "no loss has it";
}

// Of each sequence, where the whole step before is to be.
TEST(VerifyExperts, AuxiliaryLossOfOtherTokens) {
  const VerifyReport report = broken(2, ep(2) + Fields{"moe.scope=last_step"},
                                     [](ExecutorOptions& options) { options.layout.moe.scope = config::MoeScope::kSequence; });
  EXPECT_THAT(failures(report), Contains(HasSubstr("auxiliary loss of block 0")));
}

TEST(VerifyExperts, ZLossDividedByMicrobatches) {
  const VerifyReport report = broken(2, ep(2), [](ExecutorOptions& options) { options.layout.moe.z_coefficient /= 4; });
  EXPECT_GT(report.steps[0].max_gradient_error, report.tolerances.gradient);
}

TEST(VerifyExperts, RouterWithoutAGradient) {
  const VerifyReport report = broken(2, ep(2) + kDrops, of_gradients(".experts.router.weight", [](const at::Tensor& gradient) { gradient.zero_(); }));
  EXPECT_THAT(report.steps[0].worst_gradient, HasSubstr(".experts.router.weight"));
  EXPECT_NEAR(report.steps[0].max_gradient_error, 1, 1e-6);
}

// Zeros while the norm is made.
TEST(VerifyExperts, ExpertsLeftOutOfTheNorm) {
  const auto left_out = [](ExecutorOptions& options) {
    options.before_action = [kept = std::vector<at::Tensor>()](const Action& action, ParameterStore& store) mutable {
      if (action.kind != ActionKind::kNorm && kept.empty()) return;
      const std::vector<at::Tensor> gradients = expert_gradients(store);
      if (action.kind == ActionKind::kNorm) {
        for (const at::Tensor& gradient : gradients) {
          kept.push_back(gradient.clone());
          gradient.zero_();
        }
      } else {
        for (size_t i = 0; i < gradients.size(); ++i) gradients[i].copy_(kept[i]);
        kept.clear();
      }
    };
  };
  const VerifyReport report = broken(2, ep(2), left_out);
  EXPECT_LE(report.steps[0].max_gradient_error, report.tolerances.gradient);
  EXPECT_THAT(failures(report), Contains(HasSubstr("gradient norm, against that of the layout's own gradients")));
}

// One token too many for the first expert.
TEST(VerifyExperts, CountsOffByOne) {
  const VerifyReport report = broken(2, ep(2) + kBias, of_gradients(".experts.router.bias", [](const at::Tensor& gradient) {
                                       gradient.sub_(1);
                                       gradient.select(0, 0).add_(gradient.size(0));
                                     }));
  EXPECT_THAT(report.steps[0].worst_gradient, HasSubstr(".experts.router.bias"));
}

// All is right but what is told: one token more of the first expert, by each rank.
TEST(VerifyExperts, ReportedCountsOffByOne) {
  const VerifyReport report = broken(2, ep(2), [](ExecutorOptions& options) { options.before_loads = [](std::vector<double>& loads) { ++loads[0]; }; });
  EXPECT_THAT(failures(report), ::testing::ElementsAre(HasSubstr("block 0, tokens of expert 0: ")));
  EXPECT_LE(report.steps[0].max_gradient_error, report.tolerances.gradient);
}

// Routers choose by another bias than that which the step began with, and so send other rows; it is back before the update.
TEST(VerifyExperts, CountsOfAnotherChoice) {
  const auto other = [](ExecutorOptions& options) {
    options.before_action = [turn = 0](const Action& action, ParameterStore& store) mutable {
      const bool ends = action.kind == ActionKind::kNorm;
      if (turn != (ends ? 1 : 0)) return;
      for (const engine::StateTensor& tensor : store.state())
        if (tensor.name.ends_with(".experts.router.bias") && tensor.kind == engine::StateKind::kParameter) tensor.local.select(0, 0).add_(ends ? -1 : 1);
      ++turn;
    };
  };
  const VerifyReport report = broken(2, ep(2) + kBias, other);
  EXPECT_THAT(failures(report), Contains(HasSubstr("block 1, tokens of expert 0: ")));
}

// Twice as fast as is configured: the gradient is right, its update is not.
TEST(VerifyExperts, BiasThatMovesTooFar) {
  const VerifyReport report = broken(2, ep(2) + kBias, [](ExecutorOptions& options) { options.layout.optimizer.bias_rate *= 2; });
  EXPECT_THAT(report.steps[0].worst_update, HasSubstr(".experts.router.bias, value, "));
  EXPECT_LE(report.steps[0].max_gradient_error, report.tolerances.gradient);
}

// --- Latent attention, with the experts of DeepSeek-V3.

const Fields kDeepseek = {"model.preset=deepseek-test", "model.layers=2", "moe.z_coefficient=0.01"};

TEST(VerifyLatentAttention, OverRanks) {
  const Fields muon = {"optimizer.kind=muon", "optimizer.ns_precision=fp32"}, bias = {"moe.balance=bias"};
  const std::vector<Case> cases = {{2, micro(2)},
                                   {2, ep(2)},
                                   {2, kTp + micro(2)},
                                   {2, kPlainTp},
                                   {2, kTp + ep(2) + bias},
                                   {2, kPlainTp + ep(1, 2) + kDrops},
                                   {4, Fields{"parallel.tp=4", "parallel.ep=4"}},
                                   {4, Fields{"parallel.tp=4", "parallel.sequence_parallel=false"} + ep(2)},
                                   {4, kTp + ep(2) + Fields{"parallel.row_groups=true", "parallel.zero=1"}},
                                   {4, kTp + ep(2) + zero(3)},
                                   {4, pp("1f1b") + kTp + ep(2)},
                                   {4, pp("zb-h1") + kTp + bias},
                                   {4, pp("zb-v") + kPlainTp + ep(2)},
                                   {8, pp("interleaved") + kTp + ep(4) + zero(1)},
                                   {2, kTp + Fields{"parallel.overlap=false"}},
                                   {2, kTp + Fields{"train.seq_len=15", "train.micro_batch=1"}},  // rows cut in 8 and 7
                                   {2, kTp + Fields{"train.seq_len=1", "train.micro_batch=2"}},
                                   {2, kTp + ep(2) + Fields{"memory.recompute=full"}},
                                   {2, kTp + Fields{"memory.recompute=selective"}},
                                   {4, ep(2) + zero(3) + Fields{"memory.offload=optimizer,parameters,activations", "memory.recompute=full"}},
                                   {2, kTp + ep(2) + muon},
                                   {4, kTp + ep(2) + zero(1) + muon}};
  for (const Case& one : cases) {
    SCOPED_TRACE(cat(one.ranks, " ranks ", join(one.fields, " ")));
    expect_right({.ranks = one.ranks, .fields = kDeepseek + one.fields, .options = {.steps = 2, .free = 0}});
  }
}

// A rank's part of the sums of latents' gradients, which it has over its own heads or rows.
TEST(VerifyLatentAttention, GradientsOfWhatIsWholeThatAreNotSummed) {
  VerifyReport report = verified({.ranks = 2, .fields = kDeepseek + kTp, .options = {.steps = 1, .free = 0,
      .change_layout = of_gradients(".attention.kv_a_norm.weight", [](const at::Tensor& gradient) { gradient.mul_(0.5); })}});
  EXPECT_FALSE(report.ok);
  EXPECT_THAT(report.steps[0].worst_gradient, HasSubstr(".attention.kv_a_norm.weight"));
}

}  // namespace
}  // namespace lockstep::train

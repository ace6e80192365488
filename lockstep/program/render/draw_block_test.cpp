// The lines of a block's drawing that follow its list of branches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/render/render.h"

namespace lockstep::program {
namespace {

using ::testing::ElementsAre;

// Norms, sums, and what stands beside what.
std::vector<std::string> joints(config::NormPlace norm, config::BranchOrder order) {
  config::RunConfig config;
  config.model.preset = "gpt2-test";
  config.model.norm = norm;
  config.model.branches = order;
  config.train.micro_batch = config.train.global_batch = 1;
  config.train.seq_len = 16;
  std::istringstream text(draw_block(make_layout(config, arch::resolve_model(config.model), 1), 0));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);)
    if (line[0] == '+' || line[0] == 'b' || line.find("_norm ") != std::string::npos) lines.push_back(line.substr(0, line.find(' ', 3)));
  return lines;
}

TEST(DrawBlock, FollowsTheListOfBranches) {
  using config::BranchOrder, config::NormPlace;
  EXPECT_THAT(joints(NormPlace::kBefore, BranchOrder::kSequential), ElementsAre("attention_norm", "+  x", "mlp_norm", "+  x"));
  EXPECT_THAT(joints(NormPlace::kBehind, BranchOrder::kSequential),
              ElementsAre("attention_post_norm", "+  x", "mlp_post_norm", "+  x"));
  EXPECT_THAT(joints(NormPlace::kBoth, BranchOrder::kParallelNorms),
              ElementsAre("attention_norm", "attention_post_norm", "+  x", "beside", "mlp_norm", "mlp_post_norm", "+  what"));
  EXPECT_THAT(joints(NormPlace::kBefore, BranchOrder::kParallel), ElementsAre("attention_norm", "+  x", "beside", "+  what"));
}

TEST(DrawBlock, ShowsWhatExpertsSendAndWhichAreHere) {
  using ::testing::HasSubstr;
  config::RunConfig config;
  config.model.preset = "mixtral-test";
  config.model.shared_experts = 1;
  config.model.dense_layers = config::DenseLayers{.first = 1};
  config.train.micro_batch = 1;
  config.train.global_batch = 2;
  config.train.seq_len = 16;
  config.parallel.ep = 2;
  const arch::ModelConfig model = arch::resolve_model(config.model);
  const std::string text = draw_block(make_layout(config, model, 2), 1);
  EXPECT_THAT(text, HasSubstr("block 1, with experts"));
  EXPECT_THAT(text, HasSubstr(cat("| experts ", model.experts.count / 2, "..", model.experts.count - 1, " of ", model.experts.count)));
  EXPECT_THAT(text, HasSubstr("|==> forward:  all_to_all (dispatch) over ep, about "));
  EXPECT_THAT(text, HasSubstr("|==> forward:  all_gather of counts over ep, "));
  EXPECT_THAT(text, HasSubstr("<==| backward: all_to_all (dispatch) of dy over ep, about "));
  EXPECT_THAT(text, HasSubstr("<==| backward: all_to_all (combine) of dx over ep, about "));
  EXPECT_LT(text.find("(dispatch)"), text.find("shared expert"));
  EXPECT_LT(text.find("shared expert"), text.find("(combine)"));
}

// Of a rank whose stage has neither block it is what its place in tp and ep would hold.
TEST(DrawBlock, OfRanksOfEveryStage) {
  config::RunConfig config;
  config.model.preset = "mixtral-test";
  config.model.dense_layers = config::DenseLayers{.first = 1};
  config.train.micro_batch = 1;
  config.train.global_batch = 4;
  config.train.seq_len = 16;
  config.parallel.pp = config.parallel.ep = 2;
  const Layout layout = make_layout(config, arch::resolve_model(config.model), 4);
  for (const int rank : {0, 1}) EXPECT_EQ(draw_block(layout, layout.pipelines() + rank), draw_block(layout, rank));
  EXPECT_NE(draw_block(layout, 0), draw_block(layout, 1)) << "other experts";
}

// 8 tokens of 4 key/value heads, k and v 4 wide each, in fp32: 1 KiB; exchanged for 2 x 6 query heads 2 x 8 x (6 x 4 + 2 x 8) numbers.
TEST(DrawBlock, WhatTravelsBetweenTheTokensOfRanks) {
  config::RunConfig config;
  config.model.preset = "llama-test";
  config.train.micro_batch = config.train.global_batch = 1;
  config.train.seq_len = 16;
  Layout layout = make_layout(config, arch::resolve_model(config.model), 1);
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kCp] = 2;
  layout.mesh = mesh::Mesh(degrees);
  const auto lines = [&] {
    std::vector<std::string> found;
    std::istringstream text(draw_block(layout, 0));
    for (std::string line; std::getline(text, line);)
      if (line.find(" over cp") != std::string::npos || line.starts_with("x  rows")) found.push_back(line);
    return found;
  };
  const std::string rows = "x  rows 0..7 of 8, all 48 columns";
  EXPECT_THAT(lines(), ElementsAre(rows, "|==> forward:  shift of k, v over cp, 1.00 KiB", "<==| backward: shift of k, v over cp, 1.00 KiB",
                                   "<==| backward: 2 x shift of d k, v over cp, 1.00 KiB"));
  layout.context = config::ContextKind::kAllToAll;
  EXPECT_THAT(lines(), ElementsAre(rows, "|==> forward:  all_to_all of q, k, v over cp, 2.50 KiB", "|==> forward:  all_to_all of output over cp, 1.50 KiB",
                                   "<==| backward: all_to_all of d output over cp, 1.50 KiB", "<==| backward: all_to_all of d q, k, v over cp, 2.50 KiB"));
  layout.context = config::ContextKind::kAllGather;
  EXPECT_THAT(lines(), ElementsAre(rows, "|==> forward:  all_gather of k, v over cp, 2.00 KiB", "<==| backward: all_gather of k, v over cp, 2.00 KiB",
                                   "<==| backward: reduce_scatter of d k, v over cp, 2.00 KiB"));
}

}  // namespace
}  // namespace lockstep::program

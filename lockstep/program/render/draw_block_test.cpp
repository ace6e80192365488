// The lines of a block's drawing that follow its list of branches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

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

}  // namespace
}  // namespace lockstep::program

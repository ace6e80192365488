// Broken programs that only the rule from effects finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/program/verify/build.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

// A block for every stage, and embedding and head, which are tied.
Layout layout_of(int pp, int dp) {
  config::ModelSection section{.preset = "gpt2-test"};
  section.layers = pp;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = pp;
  degrees[mesh::Axis::kDpReplicate] = dp;
  Layout layout{.model = arch::resolve_model(section), .mesh = mesh::Mesh(degrees), .micro_batch = 1, .seq_len = 16};
  layout.global_batch = int64_t{4} * dp;
  if (pp > 1) layout.pipeline = {.ranks = pp, .first_layer = stages_of_blocks(std::vector<int>(static_cast<size_t>(pp), 1))};
  return layout;
}

void expect_found(const Layout& layout, const Program& broken, const std::string& what) {
  const std::vector<std::string> problems = verify(broken, layout);
  EXPECT_THAT(problems, AllOf(Not(IsEmpty()), Each(StartsWith("[life] rank ")))) << what;
  EXPECT_THAT(problems, Contains(HasSubstr(what)));
}

TEST(VerifyLife, WhatNobodyTakes) {
  const Layout layout = layout_of(1, 1);
  Program program = build_program(layout);
  std::vector<Action>& actions = program.own_list(0);
  actions.insert(actions.begin(), {.kind = ActionKind::kRecvForward, .stage = 0, .microbatch = 2});
  expect_found(layout, program, "nobody takes the input of embed m2");
}

// The sum over two stages is that of a unit which only one has; the one that both have is read in parts.
TEST(VerifyLife, AGradientThatIsReadBeforeItIsSummed) {
  const Layout layout = layout_of(2, 1);
  Program program = build_program(layout);
  for (std::vector<Action>& actions : program.lists) std::ranges::find(actions, ActionKind::kReduceTied, &Action::kind)->unit = 1;
  expect_found(layout, program, "NORM: the gradient of embed is part of a sum over stages");
}

TEST(VerifyLife, WhatIsNotThereYet) {
  Layout layout = layout_of(2, 2);
  layout.pipeline.kind = ScheduleKind::kZbH2;
  layout.pipeline.post_validation = true;
  Program program = build_program(layout);
  for (std::vector<Action>& actions : program.lists) {
    const auto tokens = std::ranges::find(actions, ActionKind::kTokens, &Action::kind);
    std::rotate(tokens, tokens + 1, actions.end());
  }
  expect_found(layout, program, "NORM without the number of tokens");
}

}  // namespace
}  // namespace lockstep::program

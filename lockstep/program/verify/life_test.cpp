// Broken programs that only the rules from effects find, and layouts with much at once that they find nothing wrong with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/program/test_program.h"
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
  std::vector<Action>& actions = own_list(program, 0);
  actions.insert(actions.end() - 1, {.kind = ActionKind::kGatherUpdate, .unit = 1});
  expect_found(layout, program, "nobody takes the matrices of b0");
}

// The sum over two stages is that of a unit which only one has; the one that both have is read in parts.
TEST(VerifyLife, AGradientThatIsReadBeforeItIsSummed) {
  const Layout layout = layout_of(2, 1);
  Program program = build_program(layout);
  for (std::vector<Action>& actions : program.lists) std::ranges::find(actions, ActionKind::kReduceTied, &Action::kind)->unit = 1;
  expect_found(layout, program, "NORM finds the gradient of embed part of a sum over stages (before REDUCE_TIED)");
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

TEST(VerifyLife, WhatIsSummedForNothing) {
  const Layout layout = layout_of(1, 1);
  Program program = build_program(layout);
  std::vector<Action>& actions = own_list(program, 0);
  actions.insert(actions.end() - 2, {.kind = ActionKind::kReducePartial});
  expect_found(layout, program, "REDUCE_PARTIAL changes nothing");
}

TEST(VerifyLife, LossAndNormAreMadeOnce) {
  const Layout layout = layout_of(1, 1);
  const Program sound = build_program(layout);
  for (const ActionKind kind : {ActionKind::kLoss, ActionKind::kNorm}) {
    Program twice = sound, without = sound;
    std::vector<Action>& actions = own_list(twice, 0);
    const auto found = std::ranges::find(actions, kind, &Action::kind);
    actions.insert(found, {.kind = kind});
    expect_found(layout, twice, kind == ActionKind::kLoss ? "LOSS finds the loss whole; expects that of this rank" : "NORM finds the norm there already");
    std::erase(own_list(without, 0), Action{.kind = kind});
    EXPECT_THAT(verify(without, layout), Not(IsEmpty()));
  }
}

// No other rank runs a list that differs: nothing but what a copy lacks tells it.
TEST(VerifyLife, WhatAServerKeepsToItself) {
  Layout layout = layout_of(1, 2);
  layout.data_parallel = config::DataParallel::kParameterServer;
  Program program = build_program(layout);
  for (const int rank : {0, 1}) own_list(program, rank).pop_back();
  expect_found(layout, program, "the step leaves the parameters of embed up to date in this rank's shard or copy alone (before UNSHARD or PULL)");
}

// Every schedule, with what can stand beside it.
TEST(VerifyLife, LayoutsWithMuchAtOnceAreSound) {
  const auto each = [](ScheduleKind kind, const char* preset, int zero, int tp, bool muon, int offload) {
    Layout layout = layout_of(2, 1);
    const int virtual_stages = v_shaped(kind) || kind == ScheduleKind::kInterleaved ? 2 : 1, stages = 2 * virtual_stages;
    config::ModelSection section{.preset = preset};
    section.layers = stages;
    layout.model = arch::resolve_model(section);
    mesh::PerAxis degrees = mesh::PerAxis::ones();
    degrees[mesh::Axis::kPp] = degrees[mesh::Axis::kDpReplicate] = 2;
    degrees[mesh::Axis::kDpShard] = zero > 0 ? 2 : 1;
    degrees[mesh::Axis::kTp] = tp;
    layout.mesh = mesh::Mesh(degrees);
    layout.pipeline = {.kind = kind,
                       .ranks = 2,
                       .virtual_stages = virtual_stages,
                       .first_layer = stages_of_blocks(std::vector<int>(static_cast<size_t>(stages), 1)),
                       .post_validation = zero < 3 && offload == 0 && !(muon && (tp > 1 || zero > 0))};
    layout.global_batch = int64_t{4} * 2 * degrees[mesh::Axis::kDpShard];
    layout.zero = zero;
    if (muon) layout.optimizer.kind = config::OptimizerKind::kMuon;
    if (offload > 0) layout.recompute.assign(static_cast<size_t>(stages), offload > 1 ? arch::Recompute::kFull : arch::Recompute::kSelective);
    layout.offload = {.optimizer = offload > 0, .parameters = offload > 1 && (zero == 0 || zero == 3), .activations = offload > 1};
    EXPECT_NO_THROW(build_program(layout)) << describe(layout) << ", " << preset << (muon ? ", muon" : "") << ", offload " << offload;
  };
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZbH1,
                                  ScheduleKind::kZbH2, ScheduleKind::kZbV, ScheduleKind::kDualPipeV})
    for (const char* preset : {"gpt2-test", "llama-test"})
      for (int zero = 0; zero <= 3; ++zero)
        for (const int tp : {1, 2})
          for (const bool muon : {false, true})
            for (const int offload : {0, 1, 2}) each(kind, preset, zero, tp, muon, offload);
}

}  // namespace
}  // namespace lockstep::program

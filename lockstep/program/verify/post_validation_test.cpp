// Where VALIDATE stands, and programs in which it stands wrong.
#include "lockstep/program/passes/post_validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Layout layout_of(ScheduleKind kind, int pp, int microbatches, int dp = 1, const char* preset = "gpt2-test") {
  const int virtual_stages = v_shaped(kind) || kind == ScheduleKind::kInterleaved ? 2 : 1, stages = pp * virtual_stages;
  config::ModelSection section{.preset = preset};
  section.layers = stages;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = pp;
  degrees[mesh::Axis::kDpReplicate] = dp;
  return {.model = arch::resolve_model(section),
          .mesh = mesh::Mesh(degrees),
          .pipeline = {.kind = kind,
                       .ranks = pp,
                       .virtual_stages = virtual_stages,
                       .first_layer = stages_of_blocks(std::vector<int>(static_cast<size_t>(stages), 1)),
                       .post_validation = true},
          .global_batch = int64_t{dp} * microbatches,
          .micro_batch = 1,
          .seq_len = 16};
}

int64_t forwards_ahead(const std::vector<Action>& actions, int layer) {
  return std::count_if(actions.begin(), actions.begin() + validate_position(actions), [&](const Action& action) {
    return action.kind == ActionKind::kForward && action.layer == layer;
  });
}

// Rank r of p ends p - 1 - r forward passes before the last one: so many it can do before it must know.
TEST(PostValidation, LeavesRoomForWhatTheLastRankIsBehind) {
  for (const int p : {2, 3, 4, 8}) {
    const Layout layout = layout_of(ScheduleKind::kZbH2, p, 3 * p);
    const Program program = build_program(layout);
    for (int rank = 0; rank < p; ++rank)
      EXPECT_GE(forwards_ahead(program.list(rank), layout.stage_layers(rank).begin), p - 1 - rank) << p;
  }
}

TEST(PostValidation, EveryScheduleIsSound) {
  for (const ScheduleKind kind : {ScheduleKind::kNaive, ScheduleKind::kGPipe, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved,
                                  ScheduleKind::kZbH1, ScheduleKind::kZbH2, ScheduleKind::kZbV, ScheduleKind::kDualPipeV})
    for (const int pp : {2, 3, 4})
      for (const int dp : {1, 2})
        for (const bool overlap : {true, false}) {
          Layout layout = layout_of(kind, pp, 2 * pp, dp);
          layout.overlap = overlap;
          EXPECT_THAT(verify(build_program(layout), layout), IsEmpty()) << schedule_name(kind) << " " << pp;
        }
}

// What a sender sends ahead of its own VALIDATE and nobody has received yet.
TEST(PostValidation, UnreceivedIsWhatIsMissing) {
  const Layout layout = layout_of(ScheduleKind::kZbH2, 4, 12);
  const Program program = build_program(layout);
  for (int rank = 1; rank < 4; ++rank) {
    const auto ahead = [&](int of, ActionKind kind) {
      const std::vector<Action>& actions = program.list(of);
      return std::count_if(actions.begin(), actions.begin() + validate_position(actions),
                           [&](const Action& action) { return action.kind == kind; });
    };
    EXPECT_EQ(ahead(rank, ActionKind::kRecvForward) + std::ssize(unreceived(program, layout, rank)),
              ahead(rank - 1, ActionKind::kSendForward))
        << rank;
  }
}

// A tied gradient is summed while the last rank still has weight gradients to compute.
TEST(PostValidation, TiedGradientsDoNotWaitForTheLastW) {
  const Layout layout = layout_of(ScheduleKind::kZbH2, 2, 6);
  const std::vector<Action> last = build_program(layout).list(1);
  const auto tied = std::ranges::find(last, ActionKind::kReduceTied, &Action::kind);
  EXPECT_TRUE(std::any_of(tied, last.end(), [](const Action& action) { return action.kind == ActionKind::kBackwardWeight; }));
}

TEST(PostValidation, VerifierFindsWhatStandsWrong) {
  const Layout layout = layout_of(ScheduleKind::kZbH2, 3, 6, 2);
  const Program sound = build_program(layout);
  const auto problems = [&](const auto& change) {
    Program broken = sound;
    for (int rank = 0; rank < broken.world_size(); ++rank) change(own_list(broken, rank));
    return join(verify(broken, layout), "\n");
  };
  const Action validate{.kind = ActionKind::kValidate};
  const auto move_to = [&](std::vector<Action>& actions, int64_t place) {
    actions.erase(actions.begin() + validate_position(actions));
    actions.insert(actions.begin() + place, validate);
  };
  EXPECT_THAT(problems([&](auto& actions) { std::erase(actions, validate); }), HasSubstr("0 VALIDATE; should be 1"));
  EXPECT_THAT(problems([&](auto& actions) { actions.insert(actions.begin(), validate); }), HasSubstr("2 VALIDATE"));
  EXPECT_THAT(problems([&](auto& actions) { std::erase(actions, Action{.kind = ActionKind::kTokens}); }),
              HasSubstr("0 TOKENS; should be 1"));
  EXPECT_THAT(problems([&](auto& actions) {
                const auto first = std::ranges::find(actions, ActionKind::kBackwardInput, &Action::kind);
                move_to(actions, first - actions.begin());
              }),
              HasSubstr("before VALIDATE"));
  // The first ranks find out before they send: those behind them have received what will be sent again.
  Program early = sound;
  for (int rank = 0; rank < 2; ++rank) move_to(own_list(early, rank), 0);
  EXPECT_THAT(join(verify(early, layout), "\n"), HasSubstr("before VALIDATE, but sent after it"));
  Layout without = layout;
  without.pipeline.post_validation = false;
  EXPECT_THAT(join(verify(sound, without), "\n"), HasSubstr("1 VALIDATE; should be 0"));
}

}  // namespace
}  // namespace lockstep::program

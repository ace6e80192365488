// RECOMPUTE in step programs: where it stands, what it communicates, and the rule of the verifier that names each break.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/planned_calls.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using arch::Recompute;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using K = ActionKind;

// Three blocks: the first keeps all. Two microbatches.
Layout layout_of(int tp = 1, bool sequence_parallel = true) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kTp] = tp;
  return {.model = arch::resolve_model({.preset = "llama-test"}),
          .mesh = mesh::Mesh(degrees),
          .global_batch = 4,
          .micro_batch = 2,
          .seq_len = 16,
          .recompute = {Recompute::kNone, Recompute::kSelective, Recompute::kFull},
          .sequence_parallel = sequence_parallel};
}

TEST(Recompute, StandsDirectlyBeforeTheBackwardOfBlocksThatKeepLess) {
  const Layout layout = layout_of();
  const std::string text = program_text(build_program(layout), layout, 0);
  EXPECT_THAT(text, HasSubstr("B head m1 | RECOMPUTE b2 m1 | B b2 m1 | RECOMPUTE b1 m1 | B b1 m1 | B b0 m1 | B embed m1"));
}

TEST(Recompute, BackwardInParts) {
  const Layout layout = layout_of();
  Program program = Program::of_ranks({{{.kind = K::kForward, .stage = 0, .microbatch = 0},
                                        {.kind = K::kBackwardInput, .stage = 0, .microbatch = 0},
                                        {.kind = K::kBackwardWeight, .stage = 0, .microbatch = 0}}});
  program = expand_layers(std::move(program), layout);
  std::vector<std::string> names;
  for (const Action& action : program.list(0))
    if (action.layer == 3) names.push_back(std::string(action_name(action.kind)));
  EXPECT_THAT(names, testing::ElementsAre("F", "RECOMPUTE", "I", "W"));
}

TEST(Recompute, CommunicatesWhatForwardDidButForTheOutput) {
  for (const bool sequence_parallel : {true, false}) {
    const Layout layout = layout_of(2, sequence_parallel);
    const auto sites = [&](K kind, int layer) {
      std::vector<std::string> names;
      for (const PlannedCall& call : tensor_calls(layout, {.kind = kind, .layer = layer})) names.push_back(call_text(call.id));
      return names;
    };
    std::vector<std::string> forward = sites(K::kForward, 3);
    ASSERT_EQ(forward.back(), "blocks.2.mlp.down forward");
    forward.pop_back();
    EXPECT_EQ(sites(K::kRecompute, 3), forward);
    EXPECT_THAT(sites(K::kRecompute, 2), IsEmpty());
  }
}

TEST(Recompute, TheVerifierNamesWhatIsBroken) {
  const Layout layout = layout_of();
  const Program sound = build_program(layout);
  ASSERT_THAT(verify(sound, layout), IsEmpty());
  const auto broken = [&](auto change) {
    Program program = sound;
    std::vector<Action>& actions = own_list(program, 0);
    const auto first = std::find_if(actions.begin(), actions.end(), [](const Action& a) { return a.kind == K::kRecompute; });
    change(actions, first);
    return verify(program, layout);
  };
  using List = std::vector<Action>&;
  using At = std::vector<Action>::iterator;
  EXPECT_THAT(broken([](List actions, At at) { actions.erase(at); }),
              Contains("[life] rank 0: B b2 m0 finds what b2 keeps of m0 incomplete (before RECOMPUTE)"));
  EXPECT_THAT(broken([](List actions, At at) { actions.insert(at, *at); }),
              Contains("[life] rank 0: RECOMPUTE b2 m0 finds what b2 keeps of m0 whole; expects incomplete (before RECOMPUTE)"));
  EXPECT_THAT(broken([](List, At at) { std::swap(*at, *(at + 1)); }),
              Contains("[life] rank 0: B b2 m0 finds what b2 keeps of m0 incomplete (before RECOMPUTE)"));
  EXPECT_THAT(broken([](List actions, At at) { std::rotate(actions.begin(), at, at + 1); }),
              Contains("[life] rank 0: RECOMPUTE b2 m0 without what b2 keeps of m0"));
  EXPECT_THAT(broken([](List, At at) { at->layer = 1; }), Contains("[life] rank 0: RECOMPUTE b0 m0 finds what b0 keeps of m0 whole; expects incomplete (before RECOMPUTE)"));
  EXPECT_THAT(broken([](List, At at) { at->layer = 9; }), Contains(HasSubstr("[ranks]")));
}

}  // namespace
}  // namespace lockstep::program

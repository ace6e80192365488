// Blocks of experts in parts: each list does what the undivided one does, and what travels has another microbatch's work beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/test_experts.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using K = ActionKind;

struct Shape {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  int pp = 1, virtual_stages = 1;
  int64_t microbatches = 4;
};
constexpr Shape kShapes[] = {{},
                             {ScheduleKind::kInterleaved, 2, 2, 4},
                             {ScheduleKind::kInterleaved, 4, 2, 8},
                             {ScheduleKind::kZbV, 2, 2, 2},
                             {ScheduleKind::kZbV, 4, 2, 5},
                             {ScheduleKind::kDualPipeV, 2, 2, 5},
                             {ScheduleKind::kDualPipeV, 4, 2, 8}};
constexpr ExpertLayout kGrids[] = {{.replicate = 2, .ep = 2},
                                   {.replicate = 2, .tp = 2, .ep = 2},
                                   {.replicate = 2, .tp = 2, .ep = 1, .etp = 2},
                                   {.shard = 4, .ep = 2, .zero = 1},
                                   {.shard = 4, .ep = 2, .zero = 2}};

Layout layout_for(ExpertLayout of, const Shape& shape) {
  of.pp = shape.pp;
  of.schedule = shape.kind;
  of.virtual_stages = shape.virtual_stages;
  of.microbatches = shape.microbatches;
  Layout layout = layout_of(of);
  layout.overlap_experts = true;
  return layout;
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const Shape& shape : kShapes)
    for (const ExpertLayout& of : kGrids) all.push_back(layout_for(of, shape));
  return all;
}

Layout whole(Layout layout) {
  layout.overlap_experts = false;
  return layout;
}

// Of a list its passes through whole layers, a divided one where its last part stands.
std::vector<Action> passes(const std::vector<Action>& actions) {
  std::vector<Action> found;
  for (Action action : actions) {
    if (!computes(action.kind) || !ends_pass(action)) continue;
    action.part = -1;
    found.push_back(action);
  }
  return found;
}

TEST(DivideLayers, DoesWhatTheWholeListDoes) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(describe(layout));
    const Program divided = make_program(layout), undivided = make_program(whole(layout));
    ASSERT_THAT(verify(divided, layout), IsEmpty());
    for (const int rank : {0, layout.mesh.world_size() - 1}) {
      std::vector<Action> found = passes(divided.list(rank)), wanted = passes(undivided.list(rank));
      std::ranges::sort(found);
      std::ranges::sort(wanted);
      EXPECT_EQ(found, wanted);
      EXPECT_THAT(Ledger::difference(predict_ledger(layout, undivided, rank), predict_ledger(layout, divided, rank)), IsEmpty());
      EXPECT_GT(predict_memory(layout, divided, rank).peak, 0);
    }
    // With few microbatches not every rank of a V has a pair.
    EXPECT_TRUE(std::ranges::any_of(divided.lists, [](const std::vector<Action>& list) {
      return std::ranges::any_of(list, [](const Action& action) { return exchanges(action.kind); });
    }));
  }
}

// In the order of its layers and microbatches each of the two streams is what it was.
TEST(DivideLayers, KeepsTheOrderOfEveryMicrobatch) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(describe(layout));
    const Program divided = make_program(layout), undivided = make_program(whole(layout));
    for (int microbatch = 0; microbatch < layout.num_microbatches(); ++microbatch) {
      const auto of_it = [&](const Program& program) {
        std::vector<Action> found = passes(program.list(0));
        std::erase_if(found, [&](const Action& action) { return action.microbatch != microbatch; });
        return found;
      };
      EXPECT_EQ(of_it(divided), of_it(undivided)) << "m" << microbatch;
    }
  }
}

// Between what starts and the part that waits for it another microbatch is computed.
TEST(DivideLayers, WhatTravelsHasWorkBesideIt) {
  int hidden = 0, exposed = 0;
  for (const Layout& layout : layouts()) {
    const Program program = make_program(layout);
    const std::vector<Action>& actions = program.list(0);
    for (size_t i = 0; i < actions.size(); ++i) {
      if (!exchanges(actions[i].kind)) continue;
      size_t next = i + 1;
      while (!computes(actions[next].kind)) ++next;
      (actions[next].microbatch == actions[i].microbatch ? exposed : hidden) += 1;
    }
  }
  EXPECT_EQ(exposed, 0) << "both streams have a block for each stage";
  EXPECT_GT(hidden, 300);
}

TEST(DivideLayers, TakesTurns) {
  Layout layout = layout_for({.replicate = 2, .ep = 2}, {.microbatches = 2});
  layout.model.layers = 1;
  const std::string text = program_text(make_program(layout), layout, 0);
  EXPECT_THAT(text, HasSubstr("F embed m0 | F b0 m0 | F head m0 | B head m0 | B b0a m0 | COMBINE_B b0 m0 | F embed m1 | F b0a m1 | "
                              "DISPATCH_F b0 m1 | B b0b m0 | DISPATCH_B b0 m0 | F b0b m1 | COMBINE_F b0 m1 | B b0c m0 | B embed m0 | "
                              "F b0c m1 | F head m1 | B head m1"));
  const std::string compact = program_text(make_program(layout), layout, 0, {.compact = true});
  EXPECT_THAT(compact, HasSubstr("F embed..head m0 | B head..embed m0 in turns with F embed..head m1 | "));
  EXPECT_THAT(draw_program(make_program(layout), layout), HasSubstr("F0a"));
}

TEST(DivideLayers, LeavesListsWithoutPairsWhole) {
  for (const Shape& shape : {Shape{ScheduleKind::kNaive, 2}, Shape{ScheduleKind::kOneFOneB, 2}, Shape{ScheduleKind::kGPipe, 2},
                             Shape{ScheduleKind::kZbH1, 2}, Shape{ScheduleKind::kZbV, 4, 2, 3}}) {
    const Layout layout = layout_for({.replicate = 2, .ep = 2}, shape);
    EXPECT_TRUE(make_program(layout) == make_program(whole(layout))) << describe(layout);
  }
  const Layout alone = layout_for({.replicate = 2, .ep = 1}, {});
  EXPECT_TRUE(make_program(alone) == make_program(whole(alone)));
}

TEST(DivideLayers, IsSoundWithLessKeptAndStatesElsewhere) {
  for (const arch::Recompute choice : {arch::Recompute::kSelective, arch::Recompute::kFull})
    for (Layout layout : layouts()) {
      SCOPED_TRACE(describe(layout));
      layout.recompute.assign(static_cast<size_t>(layout.model.layers), choice);
      layout.offload.optimizer = true;
      layout.offload.activations = choice == arch::Recompute::kFull;
      const Program program = make_program(layout);
      ASSERT_THAT(verify(program, layout), IsEmpty());
      EXPECT_GT(predict_memory(layout, program, 0).peak, 0);
    }
}

// Mutants of a list in parts, and what the verifier says of each.
class PartMutants : public testing::Test {
 protected:
  using Actions = std::vector<Action>;
  const Layout layout_ = layout_for({.replicate = 2, .ep = 2}, {});
  const Program good_ = make_program(layout_);

  static size_t find(const Actions& actions, K kind, int part = -1) {
    const auto found = std::ranges::find_if(actions, [&](const Action& action) { return action.kind == kind && action.part == part; });
    EXPECT_NE(found, actions.end()) << action_name(kind) << " " << part;
    return static_cast<size_t>(found - actions.begin());
  }
  template <typename Break>
  std::string broken(const Break& breaks) const {
    Program program = good_;
    for (Actions& actions : program.lists) breaks(actions);
    return join(verify(program, layout_), "\n");
  }
  static void erase(Actions& actions, size_t i) { actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(i)); }
  // Action i stands behind action k > i.
  static void move_behind(Actions& actions, size_t i, size_t k) {
    const auto begin = actions.begin();
    std::rotate(begin + static_cast<std::ptrdiff_t>(i), begin + static_cast<std::ptrdiff_t>(i) + 1, begin + static_cast<std::ptrdiff_t>(k) + 1);
  }
};

TEST_F(PartMutants, WithoutOneOfTheCallsAreNamed) {
  for (const K kind : {K::kDispatchForward, K::kCombineForward, K::kCombineBackward, K::kDispatchBackward}) {
    EXPECT_THAT(broken([&](Actions& actions) { erase(actions, find(actions, kind)); }), HasSubstr("[life]")) << action_name(kind);
    EXPECT_THAT(broken([&](Actions& actions) {
                  const size_t i = find(actions, kind);
                  actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(i), Action(actions[i]));
                }),
                HasSubstr("[life]"))
        << action_name(kind) << " twice";
  }
}

TEST_F(PartMutants, WithoutAPartAreNamed) {
  for (const K kind : {K::kForward, K::kBackward})
    for (int part = 0; part < kParts; ++part) {
      const std::string said = broken([&](Actions& actions) { erase(actions, find(actions, kind, part)); });
      EXPECT_THAT(said, HasSubstr(part + 1 < kParts ? "[life]" : "[once]")) << action_name(kind) << " " << part;
    }
}

TEST_F(PartMutants, InAnotherOrderAreNamed) {
  const auto behind = [&](K call, K pass, int part) {
    return broken([&](Actions& actions) {
      const size_t i = find(actions, call);
      const auto later = std::find_if(actions.begin() + static_cast<std::ptrdiff_t>(i), actions.end(),
                                      [&](const Action& action) { return action.kind == pass && action.part == part; });
      ASSERT_NE(later, actions.end());
      move_behind(actions, i, static_cast<size_t>(later - actions.begin()));
    });
  };
  EXPECT_THAT(behind(K::kDispatchForward, K::kForward, 1), HasSubstr("rows that have not left for the experts"));
  EXPECT_THAT(behind(K::kCombineForward, K::kForward, 2), HasSubstr("results that are not back from the experts"));
  EXPECT_THAT(behind(K::kCombineBackward, K::kBackward, 1), HasSubstr("rows that have not left for the experts"));
  EXPECT_THAT(behind(K::kDispatchBackward, K::kBackward, 2), HasSubstr("results that are not back from the experts"));
}

TEST_F(PartMutants, OfAnotherDirectionOrLayerAreNamed) {
  EXPECT_THAT(broken([&](Actions& actions) { actions[find(actions, K::kDispatchForward)].kind = K::kCombineBackward; }), HasSubstr("[life]"));
  EXPECT_THAT(broken([&](Actions& actions) { actions[find(actions, K::kCombineForward)].layer += 1; }), HasSubstr("[life]"));
  EXPECT_THAT(broken([&](Actions& actions) { actions[find(actions, K::kCombineForward)].microbatch += 1; }), HasSubstr("[life]"));
  EXPECT_THAT(broken([&](Actions& actions) { actions[find(actions, K::kForward)].part = 0; }), HasSubstr("which has no part 0")) << "the embedding";
  EXPECT_THAT(broken([&](Actions& actions) { actions[find(actions, K::kForward, 1)].part = 3; }), HasSubstr("which has no part 3"));
  EXPECT_THAT(broken([&](Actions& actions) { actions[find(actions, K::kDispatchForward)].layer = 0; }), HasSubstr("[ranks]"));
}

// Two ranks of a group of experts that divide their lists differently would wait for each other.
TEST_F(PartMutants, OnOneRankOfAGroupAreNamed) {
  Program program = good_;
  own_list(program, 1) = make_program(whole(layout_)).list(1);
  EXPECT_THAT(join(verify(program, layout_), "\n"), HasSubstr("of one ep group do not run the same list"));
}

}  // namespace
}  // namespace lockstep::program

// Programs of models with experts: every schedule over every shape of experts is sound, and what is broken is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/test_experts.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using K = ActionKind;

struct Shape {
  ScheduleKind kind;
  int pp = 1, virtual_stages = 1;
};
constexpr Shape kShapes[] = {{ScheduleKind::kOneFOneB},        {ScheduleKind::kNaive, 2},    {ScheduleKind::kGPipe, 2},
                             {ScheduleKind::kOneFOneB, 2},     {ScheduleKind::kInterleaved, 2, 2}, {ScheduleKind::kZbH1, 2},
                             {ScheduleKind::kZbH2, 2},         {ScheduleKind::kZbV, 2, 2},   {ScheduleKind::kDualPipeV, 2, 2}};

constexpr ExpertLayout kGrids[] = {{.replicate = 4, .ep = 2},
                                   {.replicate = 2, .tp = 2, .ep = 2},
                                   {.replicate = 2, .tp = 2, .ep = 1, .etp = 2},
                                   {.shard = 4, .ep = 2, .zero = 1},
                                   {.shard = 4, .ep = 4, .zero = 2},
                                   {.shard = 4, .ep = 2, .zero = 3},
                                   {.shard = 4, .ep = 4, .zero = 3},
                                   {.replicate = 2, .shard = 2, .ep = 2, .zero = 3},
                                   {.replicate = 2, .shard = 2, .ep = 2, .zero = 2},
                                   {.tp = 4, .ep = 2, .zero = 3},
                                   {.replicate = 4, .ep = 4, .dispatcher = config::Dispatcher::kAllGather},
                                   {.replicate = 4, .ep = 4, .dispatcher = config::Dispatcher::kHierarchical, .node = 2}};

std::vector<Layout> all_layouts() {
  std::vector<Layout> layouts;
  for (const Shape& shape : kShapes)
    for (ExpertLayout of : kGrids) {
      of.pp = shape.pp;
      of.schedule = shape.kind;
      of.virtual_stages = shape.virtual_stages;
      of.microbatches = 4;
      layouts.push_back(layout_of(of));
    }
  return layouts;
}

// With the memory of every rank, which checks that all that comes goes.
TEST(ExpertPrograms, AreSoundUnderEverySchedule) {
  for (const Layout& layout : all_layouts()) {
    SCOPED_TRACE(describe(layout));
    const Program program = make_program(layout);
    ASSERT_THAT(verify(program, layout), IsEmpty());
    for (const int rank : {0, layout.mesh.world_size() - 1}) EXPECT_GT(predict_memory(layout, program, rank).peak, 0);
  }
}

TEST(ExpertPrograms, AreSoundWithOffloading) {
  for (ExpertLayout of : kGrids) {
    Layout layout = layout_of(of);
    SCOPED_TRACE(describe(layout));
    layout.offload.optimizer = true;
    layout.offload.parameters = of.zero == 0 || of.zero == 3;
    const Program program = make_program(layout);
    ASSERT_THAT(verify(program, layout), IsEmpty());
    EXPECT_GT(predict_memory(layout, program, 0).peak, 0);
  }
}

TEST(ExpertPrograms, BucketsAreOfOneGroup) {
  Layout layout = layout_of({.replicate = 4, .ep = 2});
  layout.bucket_bytes = int64_t{1} << 40;
  const std::vector<Bucket> buckets = gradient_buckets(layout, 0);
  ASSERT_EQ(buckets.size(), 2U);
  for (const Bucket& bucket : buckets)
    for (const int unit : bucket.units) EXPECT_EQ(layout.group_of(unit), group_of(layout, bucket));
}

// Transient gradients of one group beside those of another that stay.
TEST(ExpertPrograms, EachGroupIsReducedAsItIsSharedOut) {
  const Layout layout = layout_of({.replicate = 2, .shard = 2, .ep = 4, .zero = 2});
  const Program program = make_program(layout);
  for (const Action& action : program.list(0)) {
    if (!reduces(action.kind)) continue;
    EXPECT_EQ(group_of(layout, program.buckets[static_cast<size_t>(action.bucket)]), arch::ParameterGroup::kDense)
        << "experts of which each rank has others are summed over nobody";
  }
  const Layout wider = layout_of({.replicate = 4, .shard = 2, .ep = 4, .zero = 2});
  const Program reduced = make_program(wider);
  for (const Action& action : reduced.list(0)) {
    if (action.kind != K::kReduceGrad) continue;
    const bool experts = group_of(wider, reduced.buckets[static_cast<size_t>(action.bucket)]) == arch::ParameterGroup::kExperts;
    EXPECT_EQ(action.microbatch < 0, experts) << "once a step where the gradients stay";
  }
}

size_t find_reduction(const Program& program, const Layout& layout, const std::vector<Action>& actions, K kind) {
  const auto found = std::ranges::find_if(actions, [&](const Action& action) {
    return action.kind == kind &&
           group_of(layout, program.buckets[static_cast<size_t>(action.bucket)]) == arch::ParameterGroup::kExperts;
  });
  if (found == actions.end()) throw std::runtime_error("no such action");
  return static_cast<size_t>(found - actions.begin());
}

std::string broken(const Layout& layout, const Program& program) { return join(verify(program, layout), "\n"); }

TEST(ExpertMutants, AreNamed) {
  const Layout layout = layout_of({.shard = 4, .ep = 2, .zero = 1});
  const Program good = make_program(layout);
  ASSERT_THAT(verify(good, layout), IsEmpty());
  const auto each = [&](const auto& breaks) {
    Program program = good;
    for (int rank = 0; rank < program.world_size(); ++rank) {
      std::vector<Action>& actions = own_list(program, rank);
      breaks(actions, find_reduction(good, layout, actions, K::kReduceGrad));
    }
    return broken(layout, program);
  };
  const auto at = [](std::vector<Action>& actions, size_t i) { return actions.begin() + static_cast<int64_t>(i); };
  EXPECT_THAT(each([&](auto& actions, size_t i) { actions.erase(at(actions, i)); }), HasSubstr("[life]")) << "not summed";
  EXPECT_THAT(each([&](auto& actions, size_t i) { actions.insert(at(actions, i), Action(actions[i])); }), HasSubstr("[life]"))
      << "summed twice";
  EXPECT_THAT(each([&](auto& actions, size_t i) {
                const Action late = actions[i];
                actions.erase(at(actions, i));
                actions.insert(std::ranges::find(actions, K::kNorm, &Action::kind) + 1, late);
              }),
              HasSubstr("[life]"))
      << "left out of the norm";
}

// Summed over dp with what every rank holds.
TEST(ExpertMutants, InABucketOfAllElseAreNamed) {
  Layout layout = layout_of({.replicate = 4, .ep = 2});
  layout.bucket_bytes = int64_t{1} << 40;
  Program program = make_program(layout);
  const auto dense = std::ranges::find_if(program.buckets, [&](const Bucket& bucket) { return group_of(layout, bucket) == arch::ParameterGroup::kDense; });
  const auto experts = std::ranges::find_if(program.buckets, [&](const Bucket& bucket) { return group_of(layout, bucket) == arch::ParameterGroup::kExperts; });
  ASSERT_NE(dense, program.buckets.end());
  ASSERT_NE(experts, program.buckets.end());
  dense->units.insert(dense->units.end(), experts->units.begin(), experts->units.end());
  EXPECT_THAT(broken(layout, program), HasSubstr("lies in a bucket of another group"));
}

// All ranks of an expert group come to its calls in the order of their lists.
TEST(ExpertMutants, AnotherOrderOfLayersInAGroupOfExpertsIsNamed) {
  const Layout layout = layout_of({.replicate = 4, .ep = 2, .microbatches = 4});
  Program program = make_program(layout);
  std::vector<Action>& actions = own_list(program, 1);
  actions.insert(actions.begin(), {.kind = K::kForward, .layer = 0, .microbatch = 1});
  EXPECT_THAT(broken(layout, program), HasSubstr("of one ep group do not run the same list"));
}

// k rows of D for each of B S tokens, half of which stay where they are with ep 2: dispatch and combine, there and back.
TEST(ExpertLedger, OfBalancedRouting) {
  const Layout layout = layout_of({.replicate = 2, .ep = 2});
  const Program program = make_program(layout);
  const Ledger ledger = predict_ledger(layout, program, 0);
  const int64_t call = 2 * 16 * 2 * layout.model.hidden * 4;
  int64_t sent = 0, calls = 0;
  for (const auto& [key, entry] : ledger.entries()) {
    if (key.collective != Collective::kAllToAll) continue;
    EXPECT_EQ(key.axis, "ep");
    EXPECT_TRUE(entry.at_run_time.decided);
    // Of its own rows a rank sends all; both experts of every row of both ranks may be here.
    const bool comes_back = call_text(key.id).find("combine") != std::string::npos;
    EXPECT_EQ(entry.at_run_time.most, comes_back ? 2 * call : call);
    sent += entry.sent_total();
    calls += entry.count;
  }
  EXPECT_EQ(calls, 4 * 4 * 2) << "4 a block and microbatch";
  EXPECT_EQ(sent, calls * call / 2);
}

const LedgerKey kDispatch{.id = named_call("dispatch"), .collective = Collective::kAllToAll, .axis = "ep", .algorithm = Algorithm::kDirect};

TEST(ExpertLedger, OfWhatTheDataMakesThereAreAsManyCallsAndNoMoreBytesThanThereMayBe) {
  Ledger predicted, recorded;
  predicted.add(kDispatch, 64, {{1, 32}}, 2, {.decided = true, .most = 80});
  recorded.add(kDispatch, 40, {{1, 8}});
  EXPECT_EQ(Ledger::difference(predicted, recorded).size(), 1U) << "a call is missing";
  recorded.add(kDispatch, 72, {{1, 56}});
  EXPECT_THAT(Ledger::difference(predicted, recorded), IsEmpty());
  Ledger more = recorded, larger = recorded;
  more.add(kDispatch, 0, {});
  EXPECT_EQ(Ledger::difference(predicted, more).size(), 1U) << "nothing explains a third call";
  larger.merge(recorded);
  predicted.add(kDispatch, 64, {{1, 32}}, 2, {.decided = true, .most = 80});
  EXPECT_THAT(Ledger::difference(predicted, larger), IsEmpty());
  Ledger beyond;
  beyond.add(kDispatch, 81, {{1, 40}}, 4);
  EXPECT_THAT(Ledger::difference(predicted, beyond), testing::ElementsAre(HasSubstr("4 calls of about 256 B in all, at most 80 B each")));
}

// Beyond moe.imbalance_limit: more calls, each with what there is room for.
TEST(ExpertLedger, InRoundsThereMayBeMoreCalls) {
  Ledger predicted, recorded;
  predicted.add(kDispatch, 64, {{1, 32}}, 2, {.decided = true, .most = 80, .in_rounds = true});
  recorded.add(kDispatch, 80, {{1, 40}}, 3);
  EXPECT_THAT(Ledger::difference(predicted, recorded), IsEmpty());
  recorded.add(kDispatch, 81, {{1, 40}});
  EXPECT_EQ(Ledger::difference(predicted, recorded).size(), 1U) << "a round had more than its room";
  Ledger fewer;
  fewer.add(kDispatch, 80, {{1, 40}});
  EXPECT_EQ(Ledger::difference(predicted, fewer).size(), 1U);
}

}  // namespace
}  // namespace lockstep::program

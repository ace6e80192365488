// What actions touch, and what follows from it over whole lists.
#include "lockstep/program/effects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/program/passes/passes.h"

namespace lockstep::program {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

Layout layout_of(const mesh::PerAxis& degrees, int zero = 0, const std::string& preset = "gpt2-test") {
  config::ModelSection section{.preset = preset};
  section.layers = 4;
  Layout layout{.model = arch::resolve_model(section), .mesh = mesh::Mesh(degrees), .micro_batch = 1, .seq_len = 16, .zero = zero};
  const int pp = degrees[mesh::Axis::kPp];
  layout.global_batch = 4 * degrees[mesh::Axis::kDpShard] * degrees[mesh::Axis::kDpReplicate];
  if (pp > 1) layout.pipeline = {.ranks = pp, .first_layer = balanced_stages(layout.model, {.batch = 1, .seq_len = 16}, pp)};
  return layout;
}

mesh::PerAxis degrees(int pp, int replicate, int shard, int tp) {
  mesh::PerAxis result = mesh::PerAxis::ones();
  result[mesh::Axis::kPp] = pp;
  result[mesh::Axis::kDpReplicate] = replicate;
  result[mesh::Axis::kDpShard] = shard;
  result[mesh::Axis::kTp] = tp;
  return result;
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int pp : {1, 2})
    for (const int shard : {1, 2})
      for (int zero = 0; zero <= 3; ++zero)
        for (const char* preset : {"gpt2-test", "llama-test"}) {
          Layout layout = layout_of(degrees(pp, zero == 0 ? shard : 1, zero == 0 ? 1 : shard, 1), zero, preset);
          all.push_back(layout);
          layout.recompute.assign(4, arch::Recompute::kFull);
          layout.offload.activations = true;
          all.push_back(layout);
          layout.offload.optimizer = true;
          layout.offload.parameters = zero == 3 || shard == 1;
          all.push_back(layout);
        }
  for (const int zero : {0, 1, 3}) {
    all.push_back(layout_of(degrees(1, 1, zero == 0 ? 1 : 2, 2), zero, "llama-test"));
    all.back().optimizer.kind = config::OptimizerKind::kMuon;
  }
  for (const ScheduleKind kind : {ScheduleKind::kZbH1, ScheduleKind::kZbH2, ScheduleKind::kGPipe}) {
    all.push_back(layout_of(degrees(2, 1, 1, 1)));
    all.back().pipeline.kind = kind;
    all.push_back(all.back());
    all.back().pipeline.post_validation = true;
  }
  return all;
}

// Of a GPT-2 of embedding, 4 blocks and head, which is tied to the embedding.
TEST(Effects, OfWhatComputes) {
  const Layout layout = layout_of(degrees(1, 1, 1, 1));
  EffectTable effects(layout, {}, 0);
  const auto of = [&](ActionKind kind, int layer) { return effects.of({.kind = kind, .layer = layer, .microbatch = 1}).touches; };
  EXPECT_THAT(of(ActionKind::kForward, 0),
              UnorderedElementsAre(Touch{Resource::kParameters, Access::kRead, 0}, Touch{Resource::kInput, Access::kCreate, 1},
                                   Touch{Resource::kSaved, Access::kCreate, 0}));
  EXPECT_THAT(of(ActionKind::kForward, 2),
              UnorderedElementsAre(Touch{Resource::kParameters, Access::kRead, 2}, Touch{Resource::kInput, Access::kConsume, 2},
                                   Touch{Resource::kInput, Access::kCreate, 3}, Touch{Resource::kSaved, Access::kCreate, 2}));
  EXPECT_THAT(of(ActionKind::kBackwardInput, 2),
              UnorderedElementsAre(Touch{Resource::kParameters, Access::kRead, 2}, Touch{Resource::kOutputGrad, Access::kConsume, 2},
                                   Touch{Resource::kOutputGrad, Access::kCreate, 1},
                                   Touch{Resource::kSaved, Access::kUpdate, 2, 0, kForWeights}));
  EXPECT_THAT(of(ActionKind::kBackwardWeight, 2),
              UnorderedElementsAre(Touch{Resource::kSaved, Access::kConsume, 2, kForWeights, 0}, Touch{Resource::kGradients, Access::kAdd, 2}));
  EXPECT_THAT(of(ActionKind::kBackward, 5),
              UnorderedElementsAre(Touch{Resource::kParameters, Access::kRead, 0}, Touch{Resource::kParameters, Access::kRead, 5},
                                   Touch{Resource::kOutputGrad, Access::kCreate, 4}, Touch{Resource::kLosses, Access::kAdd, 0, kIncomplete, kIncomplete},
                                   Touch{Resource::kSaved, Access::kConsume, 5}, Touch{Resource::kGradients, Access::kAdd, 0},
                                   Touch{Resource::kGradients, Access::kAdd, 5}));
  EXPECT_THAT(of(ActionKind::kBackward, 0),
              UnorderedElementsAre(Touch{Resource::kOutputGrad, Access::kConsume, 0}, Touch{Resource::kSaved, Access::kConsume, 0},
                                   Touch{Resource::kGradients, Access::kAdd, 0}));
}

// A gradient is part of as many sums as actions make it whole.
TEST(Effects, WhatAGradientLacks) {
  const auto at_rest = [](const Layout& layout, int rank, int unit) {
    return EffectTable(layout, {}, rank).at_rest(Resource::kGradients, unit);
  };
  EXPECT_EQ(at_rest(layout_of(degrees(1, 1, 1, 1)), 0, 0), 0u);
  EXPECT_EQ(at_rest(layout_of(degrees(1, 4, 1, 1)), 0, 0), kPartOfTokens);
  EXPECT_EQ(at_rest(layout_of(degrees(1, 1, 2, 1)), 0, 0), kPartOfTokens);
  EXPECT_EQ(at_rest(layout_of(degrees(1, 2, 2, 1), 1), 0, 0), kPartOfTokens | kPartOfCopies);
  EXPECT_EQ(at_rest(layout_of(degrees(1, 2, 2, 1), 2), 0, 0), kPartOfCopies);  // that over tokens ends with every microbatch
  const Layout stages = layout_of(degrees(2, 1, 1, 1));                        // embedding and head are tied
  EXPECT_EQ(at_rest(stages, 0, 0), kPartOfStages);
  EXPECT_EQ(at_rest(stages, 1, 0), kPartOfStages);
  EXPECT_EQ(at_rest(stages, 0, 1), 0u);
  const Layout tensor = layout_of(degrees(1, 2, 1, 2), 0, "llama-test");  // norms, under sequence parallelism
  EXPECT_EQ(at_rest(tensor, 0, 1), kPartOfTokens | kPartOfTp);
  Layout server = layout_of(degrees(1, 2, 1, 2), 0, "llama-test");
  server.data_parallel = config::DataParallel::kParameterServer;
  EXPECT_EQ(at_rest(server, 0, 1), kPartOfTokens | kPartOfTp);
  EXPECT_EQ(at_rest(server, 3, 1), kPartOfTokens);
}

// Transient gradients are opened by what adds to them first.
TEST(Effects, WhatOpensAGradient) {
  Layout layout = layout_of(degrees(1, 2, 2, 1), 2);
  const Action backward{.kind = ActionKind::kBackward, .layer = 2, .microbatch = 0};
  EXPECT_THAT(EffectTable(layout, {}, 0).of(backward).touches,
              testing::Contains(Touch{Resource::kGradients, Access::kAdd, 2, kPartOfCopies, kPartOfCopies | kOpen | kPartOfTokens}));
  layout = layout_of(degrees(1, 1, 1, 1));
  layout.offload.optimizer = true;
  EXPECT_THAT(EffectTable(layout, {}, 0).of(backward).touches, testing::Contains(Touch{Resource::kGradients, Access::kAdd, 2, 0, kOpen}));
}

// Parameters: gathered or fetched before they are read, and after STEP where the device holds them.
TEST(Effects, WhereParametersAre) {
  const auto of = [](const Layout& layout, ActionKind kind) {
    const std::vector<Touch> touches = EffectTable(layout, {}, 0).of({.kind = kind, .unit = 1}).touches;
    const auto found = std::ranges::find(touches, Resource::kParameters, &Touch::what);
    return std::pair(found->from, found->to);
  };
  Layout layout = layout_of(degrees(1, 1, 2, 1), 1);
  EXPECT_EQ(of(layout, ActionKind::kStep), std::pair(State{0}, kShardOnly));
  EXPECT_EQ(of(layout, ActionKind::kUnshard), std::pair(kShardOnly, State{0}));
  layout.offload.optimizer = true;
  EXPECT_EQ(of(layout, ActionKind::kStep), std::pair(State{0}, kShardOnly | kAway));
  layout = layout_of(degrees(1, 1, 2, 1), 3);
  EXPECT_EQ(of(layout, ActionKind::kStep), std::pair(kShardOnly, kShardOnly));
  EXPECT_EQ(of(layout, ActionKind::kReshard), std::pair(State{0}, kShardOnly));
  EXPECT_EQ(EffectTable(layout, {}, 0).at_rest(Resource::kParameters, 1), kShardOnly);
  layout.offload = {.optimizer = true, .parameters = true};
  EXPECT_EQ(EffectTable(layout, {}, 0).at_rest(Resource::kParameters, 1), kShardOnly | kAway);
  EXPECT_EQ(of(layout, ActionKind::kFetch), std::pair(kAway, State{0}));
  EXPECT_EQ(of(layout, ActionKind::kEvict), std::pair(State{0}, kAway));
}

// A server's copy is the new one until it is pulled; its workers wait for nothing of their own.
TEST(Effects, WhatAServerPulls) {
  Layout layout = layout_of(degrees(1, 2, 1, 1));
  layout.data_parallel = config::DataParallel::kParameterServer;
  const Program program = make_program(layout);
  for (const int rank : {0, 1}) {
    EffectTable effects(layout, program.buckets, rank);
    const State behind = rank == 0 ? kShardOnly : 0;
    EXPECT_THAT(effects.of({.kind = ActionKind::kPull, .bucket = 0}).touches, testing::Contains(Touch{Resource::kParameters, Access::kUpdate, 1, behind, 0}));
  }
  EXPECT_THAT(EffectTable(layout, program.buckets, 0).of({.kind = ActionKind::kStep}).touches,
              UnorderedElementsAre(Touch{Resource::kGradients, Access::kConsume, kEvery}, Touch{Resource::kStates, Access::kUpdate, kEvery},
                                   Touch{Resource::kParameters, Access::kUpdate, kEvery, 0, kShardOnly}));
}

// What waits at once is what a host or a whole group has to see before it goes on.
TEST(Effects, WhatIsJoinedAtOnce) {
  Layout layout = layout_of(degrees(2, 2, 1, 1));
  for (const bool later : {false, true}) {
    layout.pipeline.post_validation = later;
    EffectTable effects(layout, {}, 0);
    for (const ActionKind kind : {ActionKind::kLoss, ActionKind::kNorm}) {
      EXPECT_EQ(effects.of({.kind = kind}).join, later ? Join::kAtTouch : Join::kAtOnce) << action_name(kind);
      EXPECT_TRUE(effects.of({.kind = kind}).host_reads);
    }
    EXPECT_EQ(effects.of({.kind = ActionKind::kReducePartial}).join, Join::kAtOnce);
    EXPECT_EQ(effects.of({.kind = ActionKind::kTokens}).join, Join::kAtTouch);
  }
}

// It comes behind all other sums; of what comes behind it only what touches its unit waits for it. With post-validation backward
// goes on beside it, and hands over what the other rank needs before it comes to this sum.
TEST(Effects, ATiedSumHoldsUpItsUnitAlone) {
  const Layout layout = layout_of(degrees(2, 1, 1, 1));
  EffectTable effects(layout, {}, 1);
  Pending<int> pending;
  const Action tied{.kind = ActionKind::kReduceTied, .unit = 0}, weight{.kind = ActionKind::kBackwardWeight, .layer = 4, .microbatch = 0};
  pending.start({.touches = {{Resource::kGradients, Access::kUpdate, 4}}}, {}, 1);
  EXPECT_THAT(pending.of(effects.of(tied), tied), ElementsAre(1));
  pending.start(effects.of(tied), tied, 2);
  EXPECT_THAT(pending.of(effects.of(weight), weight), IsEmpty());
  const Action norm{.kind = ActionKind::kNorm};
  EXPECT_THAT(pending.of(effects.of(norm), norm), ElementsAre(2));
}

// What is dropped unchanged moves nothing and takes no place in the lane of copies.
TEST(Effects, WhatIsCopied) {
  const Layout layout = layout_of(degrees(1, 1, 1, 1));
  EffectTable effects(layout, {}, 0);
  for (const Moved moved : {Moved::kParameters, Moved::kOptimizer, Moved::kActivation}) {
    EXPECT_EQ(effects.of({.kind = ActionKind::kFetch, .layer = 1, .microbatch = 0, .unit = 1, .moved = moved}).lane, Lane::kCopies);
    EXPECT_EQ(effects.of({.kind = ActionKind::kEvict, .layer = 1, .microbatch = 0, .unit = 1, .moved = moved}).lane,
              moved == Moved::kParameters ? Lane::kCompute : Lane::kCopies);
  }
}

// Activations, their gradients, what is kept and what is sent: made once, taken once, and nothing is left of a step.
TEST(Effects, WhatAMicrobatchMakesIsTaken) {
  for (const Layout& layout : layouts()) {
    const Program program = make_program(layout);
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      EffectTable effects(layout, program.buckets, rank);
      std::set<std::tuple<Resource, int, int>> there;
      for (const Action& action : program.list(rank))
        for (const Touch& touch : effects.of(action).touches) {
          if (!by_microbatch(touch.what)) continue;
          const std::tuple key(touch.what, touch.index, action.microbatch);
          const std::string where = cat(describe(layout), " rank ", rank, ": ", action_text(action, program.buckets, layout.num_layers()));
          if (touch.what == Resource::kSent && touch.index == kEvery) {
            std::erase_if(there, [](const auto& key_of) { return std::get<0>(key_of) == Resource::kSent; });
          } else if (touch.how == Access::kCreate) {
            EXPECT_TRUE(there.insert(key).second) << where;
          } else {
            EXPECT_TRUE(there.contains(key)) << where;
            if (touch.how == Access::kConsume) there.erase(key);
          }
        }
      EXPECT_THAT(there, IsEmpty()) << describe(layout) << " rank " << rank;
    }
  }
}

// The optimizer's slots take the gradient, matrices travel, values change: each waits for the one before it, and other units for none.
TEST(Effects, OfMatricesThatAreUpdatedWhole) {
  Layout layout = layout_of(degrees(1, 1, 2, 1), 1, "llama-test");
  layout.optimizer.kind = config::OptimizerKind::kMuon;
  EffectTable effects(layout, {}, 0);
  const Action gather{.kind = ActionKind::kGatherUpdate, .unit = 2}, scatter{.kind = ActionKind::kScatterUpdate, .unit = 2};
  EXPECT_THAT(effects.of(gather).touches,
              UnorderedElementsAre(Touch{Resource::kGradients, Access::kRead, 2}, Touch{Resource::kNorm, Access::kRead, 0},
                                   Touch{Resource::kStates, Access::kUpdate, 2}, Touch{Resource::kDirections, Access::kCreate, 2, kAway, kIncomplete}));
  EXPECT_THAT(effects.of(scatter).touches, UnorderedElementsAre(Touch{Resource::kDirections, Access::kUpdate, 2, kIncomplete}));
  Pending<int> pending;
  pending.start(effects.of(gather), gather, 1);
  EXPECT_THAT(pending.of(effects.of({.kind = ActionKind::kStep, .unit = 1}), gather), IsEmpty());
  EXPECT_THAT(pending.of(effects.of(scatter), scatter), ElementsAre(1));
  pending.start(effects.of(scatter), scatter, 2);
  EXPECT_THAT(pending.of(effects.of({.kind = ActionKind::kStep, .unit = 2}), gather), UnorderedElementsAre(1, 2));
  layout.optimizer = {};
  EffectTable adamw(layout, {}, 0);
  for (const Touch& touch : adamw.of({.kind = ActionKind::kStep, .unit = 2}).touches) EXPECT_NE(touch.what, Resource::kDirections);
}

// Nothing that is joined at a touch is left at the end of a step but what stands behind STEP, and with post-validation what
// VALIDATE joins.
TEST(Effects, WhatIsStartedIsJoined) {
  for (const Layout& layout : layouts()) {
    const Program program = make_program(layout);
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      EffectTable effects(layout, program.buckets, rank);
      Pending<Action> pending;
      for (const Action& action : program.list(rank)) {
        const Effects& of = effects.of(action);
        if (of.join == Join::kAtTouch)
          pending.start(of, action, action);
        else
          pending.join(of, action);
      }
      Action every{.kind = ActionKind::kForward};
      for (const Resource what : {Resource::kInput, Resource::kOutputGrad, Resource::kSent, Resource::kGradients, Resource::kTokens, Resource::kDirections})
        EXPECT_THAT(pending.of({.touches = {{what, Access::kRead, kEvery}}}, every), IsEmpty()) << describe(layout) << static_cast<int>(what);
      const auto left = pending.of({.touches = {{Resource::kLosses, Access::kRead, 0}, {Resource::kNorm, Access::kRead, 0}}}, every);
      EXPECT_EQ(left.size(), layout.pipeline.post_validation ? 2u : 0u) << describe(layout);
    }
  }
}

TEST(Pending, NamesWhatIsTouched) {
  const auto touching = [](Resource what, int index, Access how = Access::kUpdate) { return Effects{.touches = {{what, how, index}}}; };
  const Action first{.kind = ActionKind::kFetch, .microbatch = 0}, second{.kind = ActionKind::kFetch, .microbatch = 1};
  Pending<int> pending;
  pending.start(touching(Resource::kGradients, 3), first, 1);
  pending.start(touching(Resource::kGradients, 4), first, 2);
  pending.start(touching(Resource::kSaved, 3), first, 3);
  EXPECT_THAT(pending.of(touching(Resource::kGradients, 3), second), ElementsAre(1));       // of the step
  EXPECT_THAT(pending.of(touching(Resource::kSaved, 3), second), IsEmpty());                // of another microbatch
  EXPECT_THAT(pending.of(touching(Resource::kGradients, kEvery), second), ElementsAre(1, 2));
  pending.start(touching(Resource::kGradients, kEvery), second, 4);  // behind both
  EXPECT_THAT(pending.of(touching(Resource::kGradients, 4), first), ElementsAre(4));
  pending.join(touching(Resource::kGradients, kEvery), first);
  EXPECT_THAT(pending.of(touching(Resource::kGradients, kEvery), first), IsEmpty());
  pending.start(touching(Resource::kInput, 3, Access::kConsume), first, 5);  // nobody will find it there
  EXPECT_THAT(pending.of(touching(Resource::kInput, kEvery), first), IsEmpty());
}

}  // namespace
}  // namespace lockstep::program

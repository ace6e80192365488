// Memory of programs of models with experts, point by point: every expected byte from a formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/test_experts.h"

namespace lockstep::program {
namespace {

using K = ActionKind;
using C = MemoryCategory;

int64_t value(const MemoryArray& bytes, C category) { return bytes[static_cast<size_t>(category)]; }

size_t index_of(const Program& program, K kind, int layer) {
  const std::vector<Action>& actions = program.list(0);
  const auto found = std::ranges::find_if(actions, [&](const Action& action) { return action.kind == kind && action.layer == layer; });
  EXPECT_NE(found, actions.end());
  return static_cast<size_t>(found - actions.begin());
}

struct Rows {
  ExpertLayout of{};
  std::optional<double> capacity{};
  int64_t received = 0, sent = 0;  // R, N
};

// A block of experts keeps, where a dense one keeps gate, up and their product: logits, the slopes of the losses by sequence, the rows
// that came with what was made of them, and the outputs back at the source. Of the rows the most there may be.
TEST(ExpertMemory, WhatABlockKeepsIsTheBoundOfItsRows) {
  constexpr int64_t kBatch = 2, kTokens = 32, kHidden = 64, kFfn = 96, kExperts = 8;
  for (const Rows& rows : {Rows{{}, {}, 64, 64},                       // alone: T k
                           Rows{{.replicate = 2, .ep = 2}, {}, 128, 64},   // G T min(k, E / ep)
                           Rows{{.replicate = 8, .ep = 8}, {}, 256, 64},   // one expert here
                           Rows{{.replicate = 2, .etp = 2}, {}, 128, 64},  // all rows of both
                           Rows{{.replicate = 2, .ep = 2}, 0.5, 32, 32},   // 2 tokens of a sequence for each expert
                           Rows{{.replicate = 4, .ep = 2}, {}, 128, 64}}) {
    ExpertLayout of = rows.of;
    of.microbatches = 1;
    for (const double z : {0.0, 0.01}) {
      SCOPED_TRACE(cat(text_of(of), " z ", z));
      Layout layout = layout_of(of);
      layout.model.experts.dense_layers = {0};
      layout.moe.capacity_factor = rows.capacity;
      layout.moe.z_coefficient = z;
      const Program program = make_program(layout);
      const MemoryTimeline timeline = memory_timeline(layout, program, 0);
      const auto after = [&](int layer) { return value(timeline.points[index_of(program, K::kForward, layer)].after, C::kActivations); };
      const int64_t ffn = kFfn / of.etp, slopes = kBatch * (kExperts + (z > 0 ? 1 : 0));
      const int64_t experts = kTokens * kExperts + slopes + rows.received * (kHidden + 3 * ffn) + rows.sent * kHidden;
      EXPECT_EQ((after(2) - after(1)) - (after(1) - after(0)), 4 * (experts - kTokens * 3 * kFfn));
    }
  }
}

struct Shared {
  ExpertLayout of{};
  int dense = 1, experts = 1;  // ranks that share out states
};

// Each group by its own shards: what stays, and what is there only while it is used.
TEST(ExpertMemory, UnitsOfEachGroupComeAndGoAsTheyAreSharedOut) {
  for (const Shared& shared : {Shared{{.shard = 4, .ep = 2, .zero = 3}, 4, 2}, Shared{{.shard = 4, .ep = 4, .zero = 3}, 4, 1},
                               Shared{{.tp = 2, .ep = 1, .zero = 3}, 1, 2}, Shared{{.shard = 4, .ep = 4, .zero = 2}, 4, 1},
                               Shared{{.shard = 4, .ep = 2, .zero = 2}, 4, 2}, Shared{{.shard = 4, .ep = 2, .zero = 1}, 4, 2},
                               Shared{{.replicate = 2, .shard = 2, .ep = 4, .zero = 3}, 2, 1}}) {
    SCOPED_TRACE(text_of(shared.of));
    const Layout layout = layout_of(shared.of);
    const Program program = make_program(layout);
    const arch::FlatLayout flat = layout.flat_layout(0);
    const auto shards = [&](const arch::FlatUnit& unit) { return unit.group == arch::ParameterGroup::kExperts ? shared.experts : shared.dense; };
    const auto come_and_go = [&](const arch::FlatUnit& unit, int stage) { return shared.of.zero >= stage && shards(unit) > 1; };
    int64_t parameters = 0, gradients = 0, states = 0;
    for (const arch::FlatUnit& unit : flat.units) {
      const int64_t whole = 4 * unit.numel(), part = whole / shards(unit);
      parameters += come_and_go(unit, 3) ? part : whole;
      gradients += come_and_go(unit, 2) ? part : whole;
      states += 2 * part;
    }
    const MemoryTimeline timeline = memory_timeline(layout, program, 0);
    EXPECT_EQ(value(timeline.before, C::kOptimizer), states);
    std::set<int> open;  // units whose whole gradient is there
    for (size_t i = 0; i < timeline.points.size(); ++i) {
      const Action& action = program.list(0)[i];
      for (const arch::FlatUnit& unit : flat.units) {
        const int64_t whole = 4 * unit.numel();
        if (action.unit == unit.id && come_and_go(unit, 3)) {
          if (action.kind == K::kUnshard) parameters += whole;
          if (action.kind == K::kReshard) parameters -= whole;
        }
        if (!come_and_go(unit, 2)) continue;
        const bool reduced = action.kind == K::kShardGrad && program.buckets[static_cast<size_t>(action.bucket)].units.front() == unit.id;
        if (action.kind == K::kBackward && action.layer == unit.layer && open.insert(unit.id).second) gradients += whole;
        if (reduced && open.erase(unit.id) == 1) gradients -= whole;
      }
      ASSERT_EQ(value(timeline.points[i].after, C::kParameters), parameters) << "action " << i;
      ASSERT_EQ(value(timeline.points[i].after, C::kGradients), gradients) << "action " << i;
    }
    EXPECT_TRUE(open.empty());
  }
}

// Of each unit of 24 matrices of 64 x 96, in bf16: the 12 that a rank owns, gathered and orthogonalised, and its half of all.
TEST(ExpertMemory, MatricesOnTheirWayToOwners) {
  Layout layout = layout_of({.replicate = 2, .etp = 2});
  layout.optimizer.kind = config::OptimizerKind::kMuon;
  const Program program = make_program(layout);
  const MemoryTimeline timeline = memory_timeline(layout, program, 0);
  constexpr int64_t kNumel = 64 * 96, kUnit = 2 * (2 * 12 + 24 / 2) * kNumel, kIteration = 2 * (2 * 64 * 64 + kNumel);
  int64_t there = 0, most = 0;
  std::set<int> gathered;
  for (size_t i = 0; i < timeline.points.size(); ++i) {
    const Action& action = program.list(0)[i];
    const int64_t before = there;
    if (action.kind == K::kGatherUpdate && gathered.insert(action.unit).second) there += kUnit;
    if (action.kind == K::kStep && gathered.contains(action.unit)) there -= kUnit;
    EXPECT_EQ(value(timeline.points[i].after, C::kBuffers), there) << "action " << i;
    if (action.kind == K::kScatterUpdate) {
      EXPECT_EQ(value(timeline.points[i].within, C::kBuffers), before + kIteration) << "action " << i;
    }
    most = std::max(most, there);
  }
  EXPECT_EQ(there, 0);
  EXPECT_EQ(most, 3 * kUnit) << "one that is orthogonalised, the one before and the one behind it";
  EXPECT_EQ(gathered.size(), 4U);
}

}  // namespace
}  // namespace lockstep::program

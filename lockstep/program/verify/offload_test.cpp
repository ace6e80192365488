// Programs that keep states on the host and on disk: their lists, and what the verifier says of broken ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using K = ActionKind;
using Actions = std::vector<Action>;

struct Case {
  bool parameters = false;
  bool activations = false;
  bool optimizer = true;
  int zero = 0;
  int shard = 1;
  int replicate = 1;
  int tp = 1;
  int microbatches = 1;
  int blocks = 1;
  int disk_units = 0;  // at least so many
  int prefetch = 1;
};

Layout layout_of(const Case& c) {
  config::ModelSection section{.preset = "llama-test"};
  section.layers = c.blocks;
  section.vocab_size = 1024;  // embedding and head are larger than a block
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kDpReplicate] = c.replicate;
  degrees[mesh::Axis::kDpShard] = c.shard;
  degrees[mesh::Axis::kTp] = c.tp;
  Layout layout{.model = arch::resolve_model(section),
                .mesh = mesh::Mesh(degrees),
                .global_batch = 2 * c.shard * c.replicate * c.microbatches,
                .micro_batch = 2,
                .seq_len = 16,
                .bucket_bytes = 0,
                .zero = c.zero,
                .prefetch = c.prefetch,
                .offload = {.optimizer = c.optimizer, .parameters = c.parameters, .activations = c.activations}};
  if (c.activations) layout.recompute.assign(static_cast<size_t>(c.blocks), arch::Recompute::kFull);
  layout.offload.disk = c.disk_units > 0;
  // The first limit, from that of all states downwards, that sends so many units to disk.
  int64_t limit = host_plan(layout, 0).host();
  while (c.disk_units > 0) {
    layout.offload.host_limit = limit;
    if (static_cast<int>(host_plan(layout, 0).disk_units.size()) >= c.disk_units) break;
    limit -= 16 << 10;
  }
  return layout;
}

std::string text_of(const Layout& layout) { return program_text(build_program(layout), layout, 0); }

TEST(OffloadTest, TheUpdateRunsOnTheHostUnitByUnit) {
  EXPECT_EQ(text_of(layout_of({})),
            "F embed m0 | F b0 m0 | F head m0 | B head m0 | SHARD_GRAD head m0 | B b0 m0 | SHARD_GRAD b0 m0 | "
            "B embed m0 | SHARD_GRAD embed m0 | LOSS | NORM | STEP embed | FETCH embed | STEP b0 | FETCH b0 | "
            "STEP head | FETCH head");
}

// What other ranks need is gathered while the next unit is updated.
TEST(OffloadTest, UpdatedParametersAreGatheredOneUnitLater) {
  EXPECT_THAT(text_of(layout_of({.zero = 1, .shard = 2})),
              HasSubstr("STEP embed | FETCH embed | STEP b0 | FETCH b0 | UNSHARD embed | STEP head | FETCH head | "
                        "UNSHARD b0 | UNSHARD head"));
  EXPECT_THAT(text_of(layout_of({.zero = 3, .shard = 2})),
              HasSubstr("NORM | STEP embed | FETCH embed | STEP b0 | FETCH b0 | STEP head | FETCH head"));
}

TEST(OffloadTest, ParametersComeLayerByLayer) {
  EXPECT_EQ(text_of(layout_of({.parameters = true})),
            "FETCH embed | FETCH b0 | F embed m0 | EVICT embed | FETCH head | F b0 m0 | EVICT b0 | F head m0 | "
            "FETCH b0 | B head m0 | EVICT head | SHARD_GRAD head m0 | B b0 m0 | EVICT b0 | SHARD_GRAD b0 m0 | "
            "B embed m0 | SHARD_GRAD embed m0 | LOSS | NORM | STEP embed | STEP b0 | STEP head");
}

// This rank's shard comes while the unit before it is gathered, and goes once that is dropped.
TEST(OffloadTest, ShardsComeAheadOfTheirGathering) {
  EXPECT_THAT(text_of(layout_of({.parameters = true, .zero = 3, .shard = 2})),
              HasSubstr("FETCH embed | FETCH b0 | UNSHARD embed | FETCH head | UNSHARD b0 | F embed m0 | RESHARD embed | "
                        "EVICT embed | UNSHARD head | F b0 m0 | RESHARD b0 | EVICT b0"));
}

TEST(OffloadTest, UnitsOnDiskComeAheadOfTheirUpdate) {
  const Layout layout = layout_of({.parameters = true, .blocks = 3, .disk_units = 3});
  EXPECT_EQ(host_plan(layout, 0).disk_units, (std::vector{1, 2, 3}));  // the blocks are smaller than the vocabulary
  const std::string text = text_of(layout);
  EXPECT_THAT(text, HasSubstr("FETCH state of b0 | B head m0"));
  EXPECT_THAT(text, HasSubstr("STEP embed | FETCH state of b1 | STEP b0 | EVICT state of b0 | FETCH state of b2 | "
                              "STEP b1 | EVICT state of b1 | STEP b2 | EVICT state of b2 | STEP head"));
}

// The equation of the plan, term by term.
TEST(OffloadTest, AsFewUnitsAsTheLimitAllowsGoToDisk) {
  const Layout all = layout_of({.shard = 1, .blocks = 4});
  const HostPlan everything = host_plan(all, 0);
  const arch::FlatLayout flat = all.flat_layout(0);
  EXPECT_EQ(everything.host(), flat.numel * (4 + 8 + 4));
  EXPECT_THAT(everything.disk_units, IsEmpty());
  const int64_t block = flat.units[1].numel();
  for (int count = 3; count <= 4; ++count) {  // fewer need more for their two buffers than they give
    const HostPlan plan = host_plan(layout_of({.blocks = 4, .disk_units = count}), 0);
    EXPECT_EQ(static_cast<int>(plan.disk_units.size()), count);
    EXPECT_EQ(plan.disk, count * block * 12);
    EXPECT_EQ(plan.staging, 2 * block * 12);
    EXPECT_EQ(plan.host(), flat.numel * 16 - count * block * 12 + plan.staging);
  }
  Layout sharded = layout_of({.parameters = true, .zero = 3, .shard = 2, .blocks = 4});
  sharded.precision = config::Precision::kBf16;
  EXPECT_EQ(host_plan(sharded, 0).host(), sharded.flat_layout(0).numel / 2 * (4 + 8 + 4 + 2));
}

// The ways out of a plan that is refused.
std::vector<config::Suggestion> ways_out_of(const Layout& layout) {
  try {
    build_program(layout);
  } catch (const config::RefusedConfig& refused) {
    EXPECT_EQ(refused.message().code, "LS4010");
    const int64_t gradients = layout.flat_layout(0).numel * 4;
    EXPECT_THAT(refused.message().what, HasSubstr(cat("gradients ", format_bytes(static_cast<double>(gradients)))));
    return refused.problems().at(0).ways;
  }
  ADD_FAILURE() << "it fits";
  return {};
}

TEST(OffloadTest, ALimitThatNothingMeetsIsRefusedWithItsEquation) {
  Layout layout = layout_of({.blocks = 4});
  for (const bool disk : {false, true}) {
    layout.offload.host_limit = 1024;  // less than the gradients alone: no disk helps
    layout.offload.disk = disk;
    const std::vector<config::Suggestion> ways = ways_out_of(layout);
    ASSERT_EQ(ways.size(), 1u);
    EXPECT_EQ(ways[0].changes[0].key, "memory.host_limit");
    layout.offload.host_limit = parse_bytes(ways[0].changes[0].value.value()).value();
    EXPECT_NO_THROW(build_program(layout));
  }
}

TEST(OffloadTest, ADiskIsOfferedWhereItHelps) {
  Layout layout = layout_of({.blocks = 4, .disk_units = 4});
  EXPECT_NO_THROW(build_program(layout));
  layout.offload.disk = false;
  const std::vector<config::Suggestion> ways = ways_out_of(layout);
  ASSERT_EQ(ways.size(), 2u);
  EXPECT_EQ(ways[0].changes[0].key, "memory.disk_path");
}

size_t find(const Actions& actions, K kind, int place, Moved moved = Moved::kParameters, int which = 0) {
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const bool here = (action.unit == place || action.layer == place) && action.moved == moved;
    if (action.kind == kind && here && which-- == 0) return i;
  }
  throw std::runtime_error("no such action");
}
void erase(Actions& actions, size_t i) { actions.erase(actions.begin() + static_cast<int64_t>(i)); }
void insert(Actions& actions, size_t i, const Action& action) {
  actions.insert(actions.begin() + static_cast<int64_t>(i), action);
}
void move(Actions& actions, size_t from, size_t to) {
  const Action action = actions[from];
  erase(actions, from);
  insert(actions, to, action);
}

constexpr Case kDisk{.parameters = true, .blocks = 4, .disk_units = 4};
constexpr Case kSharded{.parameters = true, .zero = 3, .shard = 2, .blocks = 4};
constexpr Moved kState = Moved::kOptimizer, kInput = Moved::kActivation;

struct Mutant {
  const char* rule;
  const char* what;
  Case c;
  void (*breaks)(Actions&);
};

const Mutant kMutants[] = {
    {"ranks", "a unit that owns nothing", {}, [](Actions& a) { a[find(a, K::kFetch, 0)].unit = 99; }},
    {"life", "an updated unit that stays on the host", {}, [](Actions& a) { erase(a, find(a, K::kFetch, 1)); }},
    {"life", "fetched before its update", {}, [](Actions& a) { move(a, find(a, K::kFetch, 1), find(a, K::kStep, 1)); }},
    {"life", "evicted where it stays", {}, [](Actions& a) { a.push_back({.kind = K::kEvict, .unit = 1}); }},
    {"life", "gathered before it came", {.zero = 1, .shard = 2},
     [](Actions& a) { move(a, find(a, K::kUnshard, 1), find(a, K::kFetch, 1)); }},
    {"life", "read before it came", {.parameters = true},
     [](Actions& a) { move(a, find(a, K::kFetch, 1), find(a, K::kForward, 1)); }},
    {"life", "a shard that is gathered before it came", kSharded, [](Actions& a) { erase(a, find(a, K::kFetch, 2)); }},
    {"life", "fetched twice", kSharded, [](Actions& a) { insert(a, 0, a[find(a, K::kFetch, 0)]); }},
    {"life", "a shard that is never evicted", kSharded,
     [](Actions& a) { erase(a, find(a, K::kEvict, 2, Moved::kParameters, 1)); }},
    {"life", "evicted while it is gathered", kSharded,
     [](Actions& a) { move(a, find(a, K::kEvict, 2), find(a, K::kReshard, 2)); }},
    {"prefetch", "three shards wait", kSharded, [](Actions& a) { move(a, find(a, K::kFetch, 2), 0); }},
    {"life", "fetched after STEP", kSharded, [](Actions& a) { a.push_back({.kind = K::kFetch, .unit = 1}); }},
    {"life", "fetched where nothing is offloaded", {.optimizer = false},
     [](Actions& a) { insert(a, 0, {.kind = K::kFetch, .unit = 1}); }},
    {"life", "updated before it came", kDisk, [](Actions& a) { erase(a, find(a, K::kFetch, 2, kState)); }},
    {"life", "never written back", kDisk, [](Actions& a) { erase(a, find(a, K::kEvict, 2, kState)); }},
    {"life", "written back before its update", kDisk,
     [](Actions& a) { move(a, find(a, K::kEvict, 2, kState), find(a, K::kStep, 2)); }},
    {"life", "fetched twice", kDisk, [](Actions& a) { insert(a, 0, a[find(a, K::kFetch, 2, kState)]); }},
    {"prefetch", "three at a time", kDisk,
     [](Actions& a) { move(a, find(a, K::kFetch, 3, kState), find(a, K::kFetch, 2, kState)); }},
    {"life", "of a unit on the host", kDisk,
     [](Actions& a) { insert(a, 0, {.kind = K::kFetch, .unit = 0, .moved = kState}); }},
};

TEST(OffloadTest, TheVerifierNamesWhatIsWrongWithEachMutant) {
  for (const Mutant& mutant : kMutants) {
    const Layout layout = layout_of(mutant.c);
    Program program = build_program(layout);
    for (int rank = 0; rank < program.world_size(); ++rank) mutant.breaks(own_list(program, rank));
    EXPECT_THAT(join(verify(program, layout), "\n"), HasSubstr(cat("[", mutant.rule, "]"))) << mutant.what;
  }
}

// Every FETCH and EVICT of a good program is there for a reason: without it, or with it twice, the program is broken.
TEST(OffloadTest, NoMoveIsTooManyOrTooFew) {
  for (const Case& c : {Case{}, Case{.parameters = true}, kDisk, kSharded, Case{.zero = 2, .shard = 2}}) {
    const Layout layout = layout_of(c);
    const Program good = build_program(layout);
    for (size_t i = 0; i < good.list(0).size(); ++i) {
      const K kind = good.list(0)[i].kind;
      if (kind != K::kFetch && kind != K::kEvict) continue;
      Program without = good, with = good;
      for (int rank = 0; rank < good.world_size(); ++rank) {
        erase(own_list(without, rank), i);
        insert(own_list(with, rank), i, good.list(rank)[i]);
      }
      EXPECT_THAT(verify(without, layout), Not(IsEmpty())) << "without action " << i;
      EXPECT_THAT(verify(with, layout), Not(IsEmpty())) << "action " << i << " twice";
    }
  }
}

// Whatever the layout: the program is sound, and but for moves and the units of STEP the one without offload.
TEST(OffloadTest, EveryLayoutHasASoundProgram) {
  std::mt19937 random(7);
  const auto one_of = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  for (int round = 0; round < 60; ++round) {
    Case c{.zero = one_of(0, 3),
           .shard = 1,
           .replicate = one_of(1, 2),
           .tp = one_of(1, 2),
           .microbatches = one_of(1, 3),
           .blocks = one_of(1, 5),
           .prefetch = one_of(0, 3)};
    if (c.zero > 0) c.shard = one_of(1, 3);
    c.parameters = (c.zero == 0 || c.zero == 3 || c.shard == 1) && one_of(0, 1) == 1;
    if (c.blocks > 3) c.disk_units = 3;
    const Layout layout = layout_of(c);
    const Program program = build_program(layout);  // verified by itself
    Layout plain = layout;
    plain.offload = {};
    const auto passes = [](const Program& of) {
      Actions kept;
      for (const Action& action : of.list(0))
        if (computes(action.kind)) kept.push_back(action);
      return kept;
    };
    EXPECT_EQ(passes(program), passes(build_program(plain)));
  }
}

}  // namespace
}  // namespace lockstep::program

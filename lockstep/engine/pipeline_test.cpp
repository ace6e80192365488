// Pipelines of every schedule against one rank, and among one another.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <tuple>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/engine/test_values.h"
#include "lockstep/program/passes/schedule_file.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::engine {
namespace {

using program::ScheduleKind;
using testing::Case;
using testing::layout_for;
using testing::Outcome;
using testing::train_layout;

void expect_same(const Outcome& actual, const Outcome& expected, double bound, const std::string& where) {
  EXPECT_TRUE(actual.copies_agree) << where;
  ASSERT_EQ(actual.steps.size(), expected.steps.size()) << where;
  for (size_t step = 0; step < expected.steps.size(); ++step) {
    EXPECT_NEAR(actual.steps[step].loss, expected.steps[step].loss, bound * expected.steps[step].loss) << where;
    EXPECT_NEAR(actual.steps[step].grad_norm, expected.steps[step].grad_norm, bound * expected.steps[step].grad_norm) << where;
    EXPECT_EQ(actual.steps[step].tokens, expected.steps[step].tokens) << where;
  }
  testing::expect_same_gradients(actual.gradients, expected.gradients, bound, where);
  testing::expect_same_values(actual.values, expected.values, expected.gradients, {.gradient_bound = bound});
}

Case pipeline(const char* preset, ScheduleKind kind, int pp, int virtual_stages = 1) {
  return {.preset = preset, .dp = 1, .dropout = 0.1, .pp = pp, .schedule = kind, .virtual_stages = virtual_stages, .blocks = 6};
}

struct Kind {
  ScheduleKind kind;
  int virtual_stages;
};
std::vector<Kind> kinds() {
  return {{ScheduleKind::kNaive, 1}, {ScheduleKind::kGPipe, 1}, {ScheduleKind::kOneFOneB, 1}, {ScheduleKind::kInterleaved, 2},
          {ScheduleKind::kZbH1, 1},  {ScheduleKind::kZbH2, 1},  {ScheduleKind::kZbV, 2},      {ScheduleKind::kDualPipeV, 2}};
}

bool fits(const program::Layout& layout) {
  if (layout.pipeline.kind == ScheduleKind::kInterleaved && layout.num_microbatches() % layout.pipeline.ranks) return false;
  return program::schedule_problems({.kind = layout.pipeline.kind,
                                     .ranks = layout.pipeline.ranks,
                                     .virtual_stages = layout.pipeline.virtual_stages,
                                     .microbatches = static_cast<int>(layout.num_microbatches())})
      .empty();
}

TEST(Pipeline, EveryScheduleComputesWhatOneRankComputes) {
  int compared = 0;
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const int microbatches : {1, 2, 4, 8}) {
      const int batch = 2 * microbatches;
      const Outcome expected =
          train_layout(layout_for({.preset = preset, .dp = 1, .micro_batch = batch, .dropout = 0.1, .blocks = 6}, batch), {});
      std::map<int, Outcome> first;  // by the number of microbatches they all sum in the same order
      for (const int pp : {2, 3, 4})
        for (const Kind& kind : kinds()) {
          const Case c = pipeline(preset, kind.kind, pp, kind.virtual_stages);
          const program::Layout layout = layout_for(c, batch);
          if (!fits(layout)) continue;
          const std::string where = cat(preset, " ", program::describe(layout), " ", program::schedule_name(kind.kind));
          SCOPED_TRACE(where);
          ++compared;
          const Outcome actual = train_layout(layout, {});
          expect_same(actual, expected, 1e-5, where);
          const Outcome& reference = first.try_emplace(microbatches, actual).first->second;
          for (const auto& [name, gradient] : reference.gradients) {
            // Where embedding and head are on one rank, they add to one buffer in turns.
            if (name == "embed.tokens.weight" && layout.model.tied && layout.tied_peer(0) < 0) continue;
            EXPECT_TRUE(at::equal(actual.gradients.at(name), gradient)) << where << " " << name;
          }
        }
    }
  // Of 2 models x 4 batches x 3 degrees x 8 kinds all but interleaved ones whose microbatches pp does not divide.
  EXPECT_EQ(compared, 2 * (4 * 3 * 8 - 7));
}

// What a pipeline is combined with.
struct Variant {
  const char* name;
  std::function<void(Case&)> change;
};

std::vector<Variant> variants() {
  const auto zero = [](int stage, int dp, int replicate = 1) {
    return [=](Case& c) {
      c.zero = stage;
      c.dp = dp;
      c.dp_replicate = replicate;
    };
  };
  return {{"alone", [](Case&) {}},
          {"no overlap", [](Case& c) { c.overlap = false; }},
          {"dp 2", [](Case& c) { c.dp = 2; }},
          {"dp 3, odd vocabulary", [](Case& c) { c.dp = 3; c.vocab_size = 511; }},
          {"parameter server", [](Case& c) { c.dp = 2; c.kind = config::DataParallel::kParameterServer; }},
          {"zero 1", zero(1, 2)},
          {"zero 2", zero(2, 2)},
          {"zero 3", zero(3, 2)},
          {"hsdp", zero(3, 4, 2)},
          {"tp 2", [](Case& c) { c.tp = 2; }},
          {"tp 2 without sequence parallelism", [](Case& c) { c.tp = 2; c.sequence_parallel = false; }},
          {"tp 2, odd rows", [](Case& c) { c.tp = 2; c.seq_len = 17; c.micro_batch = 1; }},
          {"tp 2, zero 2", [=](Case& c) { zero(2, 2)(c); c.tp = 2; }},
          {"tp 2, row groups", [](Case& c) { c.tp = 2; c.row_groups = true; }},
          {"tp 2, row groups, zero 3", [=](Case& c) { zero(3, 2)(c); c.tp = 2; c.row_groups = true; }},
          {"recompute selective", [](Case& c) { c.recompute.assign(6, arch::Recompute::kSelective); }},
          {"recompute full", [](Case& c) { c.recompute.assign(6, arch::Recompute::kFull); }},
          {"zero 3, recompute full", [=](Case& c) { zero(3, 2)(c); c.recompute.assign(6, arch::Recompute::kFull); }},
          {"offloaded optimizer", [](Case& c) { c.offload.optimizer = true; }},
          {"offloaded parameters", [](Case& c) { c.offload.optimizer = c.offload.parameters = true; }},
          {"offloaded activations",
           [](Case& c) { c.offload.activations = true; c.recompute.assign(6, arch::Recompute::kFull); }},
          {"no dropout", [](Case& c) { c.dropout = 0; }}};
}

// Of a tied and an untied model in turns: every variant meets every schedule, and both of them both models.
const char* preset_of(size_t variant, size_t kind) { return (variant + kind) % 2 == 0 ? "gpt2-test" : "llama-test"; }

TEST(Pipeline, ComposesWithEverything) {
  const std::vector<std::tuple<ScheduleKind, int, int>> pipelines = {{ScheduleKind::kOneFOneB, 2, 1}, {ScheduleKind::kInterleaved, 2, 2},
                                                                     {ScheduleKind::kZbH1, 2, 1}, {ScheduleKind::kZbV, 2, 2},
                                                                     {ScheduleKind::kOneFOneB, 3, 1}};
  const std::vector<Variant> all = variants();
  size_t compared = 0;
  for (size_t v = 0; v < all.size(); ++v) {
    std::map<std::string, Outcome> expected;  // by model
    for (size_t k = 0; k < pipelines.size(); ++k) {
      const auto& [kind, pp, virtual_stages] = pipelines[k];
      const char* preset = preset_of(v, k);
      Case c = pipeline(preset, kind, pp, virtual_stages);
      all[v].change(c);
      if (c.ranks() > 8) continue;
      const program::Layout layout = layout_for(c);
      if (!fits(layout)) continue;
      const Case one{.preset = preset, .dp = 1, .micro_batch = 24, .seq_len = c.seq_len, .dropout = c.dropout, .vocab_size = c.vocab_size, .blocks = 6};
      if (!expected.contains(preset)) expected[preset] = train_layout(layout_for(one), {});
      const std::string where = cat(preset, " pp ", pp, " ", program::schedule_name(kind), " ", all[v].name);
      SCOPED_TRACE(where);
      expect_same(train_layout(layout, {}), expected.at(preset), 1e-5, where);
      ++compared;
    }
  }
  // Not on more than 8 ranks: four over pp 3; nor interleaved with three microbatches.
  EXPECT_EQ(compared, all.size() * pipelines.size() - 5);
}

// What every rank sends and holds in a step is what was predicted from its list.
void expect_predicted(const program::Layout& layout, const std::string& what) {
  lockstep::testing::run_ranks(layout.mesh.world_size(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    groups.take_ledger();
    const int rank = world.rank();
    executor.step(executor.load([&] { return testing::microbatches(layout, rank, 0); }), 1, 1e-3);
    const std::string where = cat(what, " rank ", rank);
    const program::Ledger predicted = program::predict_ledger(layout, executor.program(), rank);
    EXPECT_THAT(program::Ledger::difference(predicted, groups.take_ledger()), ::testing::IsEmpty()) << where;
    const program::MemoryBytes bytes = program::predict_memory(layout, executor.program(), rank);
    const program::MemoryBytes measured = executor.measured_memory();
    for (size_t i = 0; i < program::kNumMemoryCategories; ++i)
      EXPECT_NEAR(static_cast<double>(measured.bytes[i]), static_cast<double>(bytes.bytes[i]), 0.05 * static_cast<double>(bytes.bytes[i]))
          << where << " " << program::category_name(static_cast<program::MemoryCategory>(i));
    EXPECT_NEAR(static_cast<double>(measured.peak), static_cast<double>(bytes.peak), 0.05 * static_cast<double>(bytes.peak)) << where;
  });
}

TEST(Pipeline, LedgerAndMemoryAreThePredictedOnes) {
  install_memory_tracking();
  const std::vector<Kind> often = {{ScheduleKind::kOneFOneB, 1}, {ScheduleKind::kInterleaved, 2}, {ScheduleKind::kZbH1, 1}, {ScheduleKind::kZbV, 2}};
  const std::vector<Variant> all = variants();
  for (size_t v = 0; v < all.size(); ++v) {
    const bool plain = v == 0 || v + 1 == all.size();  // every schedule alone, with and without dropout
    const std::vector<Kind> pipelines = plain ? kinds() : often;
    for (size_t k = 0; k < pipelines.size(); ++k) {
      const char* preset = preset_of(v, k);
      Case c = pipeline(preset, pipelines[k].kind, 2, pipelines[k].virtual_stages);
      c.seq_len = 64;
      all[v].change(c);
      if (c.ranks() > 8) continue;
      const program::Layout layout = layout_for(c, 8 * c.dp * c.micro_batch);
      expect_predicted(layout, cat(preset, " ", program::describe(layout), " ", all[v].name));
    }
  }
}

// What torch.distributed.pipelining prints (tests/pipeline_grids_test.py wrote the files): KIND-ppRANKS-vSTAGES-mMICROBATCHES.
struct PrintedGrid {
  const char* name;
  int pp, virtual_stages, microbatches;
  bool ascending = true;  // in backward
};
constexpr PrintedGrid kPrintedGrids[] = {{"gpipe", 3, 1, 4},          {"interleaved", 3, 2, 4},       {"looped-bfs", 2, 2, 8, false},
                                         {"looped-bfs", 4, 1, 4, false}, {"interleaved-zb", 2, 3, 4}, {"interleaved-zb", 4, 2, 8},
                                         {"zbv", 3, 2, 4},            {"dualpipe-v", 2, 2, 4}};

program::Layout layout_of(const PrintedGrid& grid, const char* preset, int seq_len = 16) {
  Case c = pipeline(preset, ScheduleKind::kFile, grid.pp, grid.virtual_stages);
  c.seq_len = seq_len;
  program::Layout layout = layout_for(c, 2 * grid.microbatches);
  layout.pipeline.grid = read_file(cat(LOCKSTEP_SOURCE_DIR "/tests/fixtures/pipeline_grids/", grid.name, "-pp", grid.pp, "-v",
                                       grid.virtual_stages, "-m", grid.microbatches, ".csv"));
  layout.pipeline.grid_in_v = program::read_grid(layout.pipeline.grid).in_v();
  return layout;
}

TEST(Pipeline, GridsOfPyTorchComputeWhatOneRankComputes) {
  for (const char* preset : {"gpt2-test", "llama-test"}) {
    std::map<int, Outcome> alone, in_order;  // by the number of microbatches
    for (const PrintedGrid& grid : kPrintedGrids) {
      const int batch = 2 * grid.microbatches;
      const program::Layout layout = layout_of(grid, preset);
      const std::string where = cat(preset, " ", grid.name, " ", program::describe(layout));
      SCOPED_TRACE(where);
      if (!alone.contains(batch)) {
        alone[batch] = train_layout(layout_for({.preset = preset, .dp = 1, .micro_batch = batch, .dropout = 0.1, .blocks = 6}, batch), {});
        in_order[batch] = train_layout(layout_for(pipeline(preset, ScheduleKind::kOneFOneB, 2), batch), {});
      }
      const Outcome actual = train_layout(layout, {});
      expect_same(actual, alone.at(batch), 1e-5, where);
      // Sums over microbatches are in the order of the grid: the bits of every schedule where that ascends.
      for (const auto& [name, gradient] : in_order.at(batch).gradients) {
        const bool turns = name == "embed.tokens.weight" && layout.model.tied && layout.tied_peer(0) < 0;
        if (grid.ascending && !turns) {
          EXPECT_TRUE(at::equal(actual.gradients.at(name), gradient)) << where << " " << name;
        }
      }
      const auto of_norm = [](const Outcome& outcome) { return outcome.gradients.at("head.norm.weight"); };
      EXPECT_EQ(at::equal(of_norm(actual), of_norm(in_order.at(batch))), grid.ascending) << where;
    }
  }
}

TEST(Pipeline, GridsWithDeepChannelsHoldAndSendWhatIsPredicted) {
  install_memory_tracking();
  for (const PrintedGrid& grid : kPrintedGrids) {
    const program::Layout layout = layout_of(grid, "gpt2-test", 64);
    expect_predicted(layout, cat(grid.name, " ", program::describe(layout)));
  }
}

// Both stages step the same values with the same gradients: the copies never part.
TEST(Pipeline, TiedCopiesStayTheSameOverSteps) {
  for (const int zero : {0, 1, 2, 3})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
      Case c = pipeline("gpt2-test", ScheduleKind::kOneFOneB, 2);
      c.dp = 2;
      c.zero = zero;
      c.precision = precision;
      EXPECT_TRUE(train_layout(layout_for(c), {.steps = 3}).copies_agree) << "zero " << zero;
    }
}

}  // namespace
}  // namespace lockstep::engine

// Pipelines: what every rank holds, takes and sends, beside what its program predicts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_steps.h"
#include "lockstep/program/predict/traffic.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using program::ScheduleKind;
using testing::Case;
using testing::layout_for;
using testing::microbatches;

void expect_near(int64_t measured, int64_t predicted, const std::string& what) {
  EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(predicted), 0.05 * static_cast<double>(predicted)) << what;
}

// One step on every rank.
void expect_predicted(const program::Layout& layout, const std::string& what) {
  install_memory_tracking();
  lockstep::testing::run_ranks(layout.mesh.world_size(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    groups.take_ledger();
    executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), 1, 1e-3);
    const std::string where = cat(what, ", ", program::describe(layout), ", rank ", world.rank(), ": ");
    EXPECT_THAT(program::Ledger::difference(program::predict_ledger(layout, executor.program(), world.rank()), groups.take_ledger()),
                ::testing::IsEmpty())
        << where;
    const program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), world.rank());
    const program::MemoryBytes measured = executor.measured_memory();
    for (size_t i = 0; i < program::kNumMemoryCategories; ++i)
      expect_near(measured.bytes[i], predicted.bytes[i], where + std::string(program::category_name(static_cast<MemoryCategory>(i))));
    expect_near(measured.peak, predicted.peak, where + "peak");
  });
}

Case pipeline(ScheduleKind kind, int pp, int virtual_stages) {
  return {.preset = "llama-test", .dp = 1, .micro_batch = 2, .seq_len = 64, .pp = pp, .schedule = kind, .virtual_stages = virtual_stages, .blocks = 4};
}

struct Kind {
  ScheduleKind kind;
  int virtual_stages;
};
constexpr Kind kKinds[] = {{ScheduleKind::kNaive, 1}, {ScheduleKind::kGPipe, 1}, {ScheduleKind::kOneFOneB, 1}, {ScheduleKind::kInterleaved, 2},
                           {ScheduleKind::kZbH1, 1},  {ScheduleKind::kZbH2, 1},  {ScheduleKind::kZbV, 2},      {ScheduleKind::kDualPipeV, 2}};

TEST(PipelineMemory, OfEveryScheduleIsThePredictedOne) {
  for (const Kind& kind : kKinds)
    for (const double dropout : {0.0, 0.1}) {
      Case c = pipeline(kind.kind, 2, kind.virtual_stages);
      c.dropout = dropout;
      expect_predicted(layout_for(c, 16), cat("dropout ", dropout));
    }
}

TEST(PipelineMemory, OfWhatPipelinesAreCombinedWithIsThePredictedOne) {
  struct Variant {
    const char* name;
    std::function<void(Case&)> change;
  };
  const std::vector<Variant> variants = {
      {"no overlap", [](Case& c) { c.overlap = false; }},
      {"tied", [](Case& c) { c.preset = "gpt2-test"; }},
      {"dp 2", [](Case& c) { c.dp = 2; }},
      {"zero 1", [](Case& c) { c.dp = 2, c.zero = 1; }},
      {"zero 3", [](Case& c) { c.dp = 2, c.zero = 3; }},
      {"tp 2", [](Case& c) { c.tp = 2; }},
      {"tp 2, whole rows", [](Case& c) { c.tp = 2, c.sequence_parallel = false; }},
      {"selective", [](Case& c) { c.recompute.assign(4, arch::Recompute::kSelective); }},
      {"full", [](Case& c) { c.recompute.assign(4, arch::Recompute::kFull); }},
  };
  for (const Variant& variant : variants)
    for (const Kind& kind : {Kind{ScheduleKind::kOneFOneB, 1}, {ScheduleKind::kInterleaved, 2}, {ScheduleKind::kZbH1, 1}, {ScheduleKind::kZbV, 2}}) {
      Case c = pipeline(kind.kind, 2, kind.virtual_stages);
      variant.change(c);
      expect_predicted(layout_for(c, 16 * c.dp), variant.name);
    }
}

}  // namespace
}  // namespace lockstep::engine

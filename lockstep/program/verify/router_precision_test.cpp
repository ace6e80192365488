// Routers of runs in bf16 are fp32: bytes that a rank has of them, and that zero 3 gathers.
#include <gtest/gtest.h>

#include <map>

#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/summation.h"
#include "lockstep/program/test_experts.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using arch::ParameterGroup;

Layout in_bf16(const ExpertLayout& of, bool row_groups = false) {
  Layout layout = layout_of(of);
  layout.precision = config::Precision::kBf16;
  layout.row_groups = row_groups;
  return layout;
}

int64_t bytes(const MemoryArray& of, MemoryCategory category) { return of[static_cast<size_t>(category)]; }

TEST(RouterPrecision, AGroupOfBf16RunsAlone) {
  for (const bool row_groups : {false, true})
    for (const ExpertLayout& of : {ExpertLayout{}, ExpertLayout{.replicate = 2, .tp = 2, .ep = 2},
                                   ExpertLayout{.shard = 2, .tp = 2, .ep = 4, .zero = 3}}) {
      SCOPED_TRACE(text_of(of));
      Layout layout = in_bf16(of, row_groups);
      int64_t numel = 0;
      for (const arch::ParamSpec& spec : layout.param_table(0)) {
        EXPECT_EQ(spec.group == ParameterGroup::kFp32, spec.name.find(".experts.router.") != std::string::npos) << spec.name;
        EXPECT_EQ(layout.group_of(spec.unit), spec.group) << spec.name;
        EXPECT_EQ(layout.layer_of(spec.unit), spec.layer) << spec.name;
        if (spec.group != ParameterGroup::kFp32) continue;
        EXPECT_EQ(spec.partial, of.tp > 1 && !row_groups);
        numel += spec.local_numel();
      }
      EXPECT_EQ(numel, 4 * 8 * 64);
      layout.precision = config::Precision::kFp32;
      for (const arch::ParamSpec& spec : layout.param_table(0)) EXPECT_NE(spec.group, ParameterGroup::kFp32) << spec.name;
    }
}

TEST(RouterPrecision, BytesOfARank) {
  for (const ExpertLayout& of : {ExpertLayout{}, ExpertLayout{.shard = 4, .ep = 2, .zero = 1}, ExpertLayout{.shard = 4, .ep = 2, .zero = 3},
                                 ExpertLayout{.replicate = 2, .shard = 2, .ep = 2, .zero = 3}}) {
    SCOPED_TRACE(text_of(of));
    const Layout layout = in_bf16(of);
    const Program program = make_program(layout);
    int64_t parameters = 0, states = 0;
    for (const arch::FlatUnit& unit : layout.flat_layout(0).units) {
      const bool fp32 = unit.group == ParameterGroup::kFp32;
      parameters += (fp32 ? 4 : 2) * (of.zero == 3 ? unit.part() : unit.numel());
      states += (fp32 ? 8 : 12) * unit.part();  // two moments, of others the values too
    }
    const MemoryTimeline timeline = memory_timeline(layout, program, 0);
    EXPECT_EQ(bytes(timeline.before, MemoryCategory::kParameters), parameters);
    EXPECT_EQ(bytes(timeline.before, MemoryCategory::kOptimizer), states);
  }
}

// Counts of tokens take the place of the gradient of a balancing bias: whole numbers, which bf16 would round.
TEST(RouterPrecision, GradientsTravelInFp32) {
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
    Layout layout = layout_of(ExpertLayout{.shard = 4, .ep = 2, .zero = 2});
    layout.precision = precision;
    layout.reduce_precision = config::Precision::kBf16;
    EXPECT_EQ(sum_over_ranks(layout, Summed::kGradients, ParameterGroup::kFp32).element_size, 4);
    EXPECT_EQ(sum_over_ranks(layout, Summed::kGradients, ParameterGroup::kExperts).element_size, 2);
    for (const arch::ParamSpec& spec : layout.param_table(0))
      EXPECT_EQ(spec.group == ParameterGroup::kFp32, spec.name.find(".experts.router.") != std::string::npos) << spec.name;
    EXPECT_EQ(verify(make_program(layout), layout), std::vector<std::string>());
  }
}

// A ring of S ranks sends (S - 1) / S of what it gathers.
TEST(RouterPrecision, GathersOfZero3) {
  for (const ExpertLayout& of : {ExpertLayout{.shard = 4, .ep = 4, .zero = 3, .microbatches = 1},
                                 ExpertLayout{.shard = 2, .tp = 2, .ep = 2, .zero = 3}}) {
    SCOPED_TRACE(text_of(of));
    const Layout layout = in_bf16(of, /*row_groups=*/of.tp > 1);
    const Program program = make_program(layout);
    std::map<int, int64_t> times;
    for (const Action& action : program.list(0))
      if (action.kind == ActionKind::kUnshard) times[action.unit] += 1;
    int64_t expected = 0, sent = 0;
    for (const arch::FlatUnit& unit : layout.flat_layout(0).units)
      expected += times[unit.id] * (unit.shards - 1) * unit.part() * (unit.group == ParameterGroup::kFp32 ? 4 : 2);
    const Ledger ledger = predict_ledger(layout, program, 0);
    for (const auto& [key, entry] : ledger.entries())
      if (key.collective == Collective::kAllGather && call_text(key.id).starts_with("unshard"))
        for (const auto& [peer, of_peer] : entry.sent) sent += of_peer;
    EXPECT_EQ(sent, expected);
  }
}

TEST(RouterPrecision, ProgramsAreValid) {
  for (const bool row_groups : {false, true})
    for (const ExpertLayout& of : {ExpertLayout{.replicate = 2, .ep = 2}, ExpertLayout{.shard = 4, .ep = 2, .zero = 3},
                                   ExpertLayout{.replicate = 2, .shard = 2, .tp = 2, .ep = 4, .zero = 3},
                                   ExpertLayout{.shard = 2, .tp = 2, .ep = 2, .zero = 2},
                                   ExpertLayout{.replicate = 2, .tp = 2, .pp = 2, .ep = 2}}) {
      SCOPED_TRACE(text_of(of));
      Layout layout = in_bf16(of, row_groups);
      EXPECT_EQ(verify(make_program(layout), layout), std::vector<std::string>());
      layout.optimizer.kind = config::OptimizerKind::kMuon;
      layout.optimizer.rules.list = {{.of = config::ParameterClass::kRouter, .optimizer = config::OptimizerKind::kMuon}};
      EXPECT_EQ(verify(make_program(layout), layout), std::vector<std::string>()) << "routers with Muon";
    }
}

}  // namespace
}  // namespace lockstep::program

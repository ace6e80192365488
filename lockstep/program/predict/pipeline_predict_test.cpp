// What the ranks of a pipeline send, against formulas.
#include <gtest/gtest.h>

#include "lockstep/arch/model_config.h"
#include "lockstep/base/text.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/traffic.h"

namespace lockstep::program {
namespace {

struct Options {
  int pp = 2, dp = 1, shard = 1, tp = 1;
  int microbatches = 4;
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  int virtual_stages = 1;
  config::Precision precision = config::Precision::kFp32;
};

constexpr int kBlocks = 4;

Layout layout_for(const Options& options) {
  config::ModelSection section;
  section.preset = "gpt2-test";
  section.layers = kBlocks;
  Layout layout;
  layout.model = arch::resolve_model(section);
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = options.pp;
  degrees[mesh::Axis::kDpReplicate] = options.dp;
  degrees[mesh::Axis::kDpShard] = options.shard;
  degrees[mesh::Axis::kTp] = options.tp;
  layout.mesh = mesh::Mesh(degrees);
  layout.pipeline = {.kind = options.kind, .ranks = options.pp, .virtual_stages = options.virtual_stages};
  const int stages = layout.pipeline.stages();
  layout.pipeline.first_layer = stages_of_blocks(std::vector<int>(static_cast<size_t>(stages), kBlocks / stages));
  layout.micro_batch = 2;
  layout.global_batch = 2 * options.microbatches * options.dp * options.shard;
  layout.seq_len = 16;
  layout.zero = options.shard > 1 ? 1 : 0;
  layout.precision = options.precision;
  return layout;
}

LedgerEntry entry(const Layout& layout, int rank, const std::string& site) {
  const Ledger ledger = predict_ledger(layout, make_program(layout), rank);
  for (const auto& [key, found] : ledger.entries())
    if (call_text(key.id) == site) return found;
  return {};
}

TEST(PipelineLedger, AStageSendsTheHiddenStatesOfEveryMicrobatch) {
  for (const int tp : {1, 2})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
      const Layout layout = layout_for({.pp = 4, .tp = tp, .microbatches = 8, .precision = precision});
      const int64_t rows = layout.micro_batch * layout.seq_len / tp;  // sequence parallel
      const int64_t bytes = 8 * rows * layout.model.hidden * (precision == config::Precision::kFp32 ? 4 : 2);
      for (int stage = 0; stage < 4; ++stage) {
        const int rank = layout.rank_at(tp - 1, stage);
        const LedgerEntry forward = entry(layout, rank, cat("send_f stage ", stage));
        const LedgerEntry backward = entry(layout, rank, cat("send_b stage ", stage));
        EXPECT_EQ(forward.count, stage < 3 ? 8 : 0);
        EXPECT_EQ(backward.count, stage > 0 ? 8 : 0);
        using Sent = std::map<int, int64_t>;
        const auto to = [&](int other) { return Sent{{layout.rank_at(rank, other), bytes}}; };
        EXPECT_EQ(forward.sent, stage < 3 ? to(stage + 1) : Sent());
        EXPECT_EQ(backward.sent, stage > 0 ? to(stage - 1) : Sent());
        EXPECT_EQ(entry(layout, rank, cat("recv_f stage ", stage)).payload, stage > 0 ? bytes : 0);
        EXPECT_EQ(entry(layout, rank, cat("recv_f stage ", stage)).sent_total(), 0);
      }
    }
}

// v times the transfers over more, smaller stages (Narayanan et al. 2021, section 2.2); a V hands over at its point for
// nothing.
TEST(PipelineLedger, VirtualStagesSendMoreOften) {
  const auto sends = [](ScheduleKind kind, int virtual_stages) {
    const Layout layout = layout_for({.kind = kind, .virtual_stages = virtual_stages});
    const Program program = make_program(layout);
    int64_t bytes = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const Ledger ledger = predict_ledger(layout, program, rank);
      for (const auto& [key, found] : ledger.entries())
        if (key.axis == "pp" && key.collective == Collective::kSend) bytes += found.sent_total();
    }
    return bytes / (4 * 2 * 16 * layout.model.hidden * 4);  // times all microbatches' hidden states
  };
  EXPECT_EQ(sends(ScheduleKind::kOneFOneB, 1), 2);     // one edge, there and back
  EXPECT_EQ(sends(ScheduleKind::kInterleaved, 2), 6);  // three
  EXPECT_EQ(sends(ScheduleKind::kZbV, 2), 4);          // two
}

TEST(PipelineLedger, ATiedUnitIsSummedOverTheTwoThatHoldIt) {
  for (const int shard : {1, 2}) {
    const Layout layout = layout_for({.shard = shard});
    const int64_t unit = layout.flat_layout(0).units.front().numel() / shard;
    ASSERT_EQ(layout.flat_layout(0).units.front().layer, 0);
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const LedgerEntry tied = entry(layout, rank, "reduce_tied");
      EXPECT_EQ(tied.payload, 4 * unit);
      EXPECT_EQ(tied.sent, (std::map<int, int64_t>{{layout.tied_peer(rank), 4 * unit}}));  // 2 (n - 1) / n of it, n = 2
    }
  }
  const Layout v_shaped = layout_for({.kind = ScheduleKind::kZbV, .virtual_stages = 2});
  EXPECT_EQ(entry(v_shaped, 0, "reduce_tied").count, 0);  // embedding and head are on one rank
}

TEST(PipelineLedger, LossAndNormSpanTheStages) {
  const auto axis = [](const Layout& layout, const std::string& site) {
    const Ledger ledger = predict_ledger(layout, make_program(layout), 0);
    for (const auto& [key, found] : ledger.entries())
      if (call_text(key.id) == site) return key.axis;
    return std::string("none");
  };
  EXPECT_EQ(axis(layout_for({}), "loss"), "pp");
  EXPECT_EQ(axis(layout_for({}), "norm"), "pp");
  EXPECT_EQ(axis(layout_for({.dp = 2}), "loss"), "replica");
  EXPECT_EQ(axis(layout_for({.dp = 2}), "norm"), "pp");
  EXPECT_EQ(axis(layout_for({.tp = 2}), "norm"), "model");
  EXPECT_EQ(axis(layout_for({.shard = 2}), "norm"), "replica");
}

}  // namespace
}  // namespace lockstep::program

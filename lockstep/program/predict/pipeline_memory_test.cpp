// The walk over programs of pipelines, and over I and W apart: every expected byte from a formula.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/arch/model_config.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::program {
namespace {

using K = ActionKind;
using C = MemoryCategory;

struct Options {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  int pp = 2;
  int virtual_stages = 1;
  int blocks = 2;
  int microbatches = 1;
  bool overlap = false;
};

Layout layout_for(const Options& options) {
  config::ModelSection section;
  section.preset = "gpt2-test";
  section.layers = options.blocks;
  section.tied = false;
  Layout layout;
  layout.model = arch::resolve_model(section);
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = options.pp;
  layout.mesh = mesh::Mesh(degrees);
  layout.pipeline = {.kind = options.kind, .ranks = options.pp, .virtual_stages = options.virtual_stages};
  const int stages = layout.pipeline.stages();
  layout.pipeline.first_layer = stages_of_blocks(std::vector<int>(static_cast<size_t>(stages), options.blocks / stages));
  layout.micro_batch = 2;
  layout.global_batch = 2 * options.microbatches;
  layout.seq_len = 16;
  layout.overlap = options.overlap;
  return layout;
}

Program program_of(const Layout& layout) {
  return update(reduce_gradients(transfer_activations(expand_layers(schedule(layout), layout), layout), layout), layout);
}

// What the head's backward leaves until the end of the step: the loss of a microbatch, one float.
constexpr int64_t kLoss = 4;

// Of the activations, what is not there all the time.
std::vector<int64_t> after_each(const MemoryTimeline& timeline) {
  const auto index = static_cast<size_t>(C::kActivations);
  std::vector<int64_t> bytes;
  for (const MemoryPoint& point : timeline.points) bytes.push_back(point.after[index] - timeline.before[index]);
  return bytes;
}

TEST(PipelineMemory, AReceivedInputIsThereFromItsReceiveAndASentOutputUntilItHasGone) {
  const Layout layout = layout_for({});
  const Program program = program_of(layout);
  const std::vector<arch::LayerCost> c = layer_costs(layout, 0);
  const int64_t h = c[1].output;  // of an output and of its gradient
  const std::vector<K> kinds = {K::kForward, K::kForward, K::kSendForward, K::kRecvBackward, K::kBackward, K::kBackward, K::kLoss, K::kNorm, K::kStep};
  ASSERT_EQ(program.list(0).size(), kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) ASSERT_EQ(program.list(0)[i].kind, kinds[i]) << i;
  EXPECT_THAT(after_each(memory_timeline(layout, program, 0)),
              ::testing::ElementsAre(c[0].kept + h,                  // F of the embedding
                                     c[0].kept + c[1].kept + h,      // F of the block
                                     c[0].kept + c[1].kept + h,      // SEND_F: on its way
                                     c[0].kept + c[1].kept + 2 * h,  // RECV_B: what comes has its place
                                     c[0].kept + 2 * h,              // B: dx, and still what was sent
                                     h, 0, 0, 0));
  EXPECT_THAT(after_each(memory_timeline(layout, program, 1)),
              ::testing::ElementsAre(h,                              // RECV_F
                                     c[2].kept + h,                  // F: its input is among what it keeps
                                     c[2].kept + c[3].kept + c[3].output,
                                     c[2].kept + h + kLoss,          // B of the head
                                     h + kLoss, h + kLoss, kLoss, kLoss, kLoss));  // B, SEND_B, LOSS
}

// The microbatches whose activations a rank keeps at most: M, p - r, and the same of V stages (Narayanan et al. 2021).
TEST(PipelineMemory, ActivationsInFlightAreThoseOfTheSchedule) {
  struct Expected {
    ScheduleKind kind;
    int pp;
    std::vector<int> in_flight;  // of each rank, with 8 microbatches
  };
  for (const Expected& e : {Expected{ScheduleKind::kNaive, 4, {1, 1, 1, 1}}, {ScheduleKind::kGPipe, 4, {8, 8, 8, 8}},
                            {ScheduleKind::kOneFOneB, 4, {4, 3, 2, 1}}, {ScheduleKind::kOneFOneB, 2, {2, 1}}})
    for (const bool overlap : {false, true}) {
      const Layout layout = layout_for({.kind = e.kind, .pp = e.pp, .blocks = 4, .microbatches = 8, .overlap = overlap});
      const Program program = program_of(layout);
      const std::vector<arch::LayerCost> costs = layer_costs(layout, 0);
      const int64_t passing = 5 * costs[1].output;  // x or y, dy, dx, what is sent and what comes
      for (int rank = 0; rank < e.pp; ++rank) {
        int64_t stage = 0;
        for (const int layer : layout.layers_of(rank)) stage += costs[static_cast<size_t>(layer)].kept;
        ASSERT_LT(passing, stage);
        const std::vector<int64_t> bytes = after_each(memory_timeline(layout, program, rank));
        const int64_t most = *std::max_element(bytes.begin(), bytes.end());
        const int64_t kept = e.in_flight[static_cast<size_t>(rank)] * stage;
        EXPECT_GE(most, kept) << schedule_name(e.kind) << " rank " << rank;
        EXPECT_LE(most, kept + passing) << schedule_name(e.kind) << " rank " << rank;
      }
    }
}

TEST(PipelineMemory, EveryScheduleLeavesLossesAlone) {
  for (const auto& [kind, virtual_stages] : {std::pair{ScheduleKind::kNaive, 1}, {ScheduleKind::kGPipe, 1}, {ScheduleKind::kOneFOneB, 1},
                                             {ScheduleKind::kInterleaved, 2}, {ScheduleKind::kZbH1, 1}, {ScheduleKind::kZbH2, 1},
                                             {ScheduleKind::kZbV, 2}, {ScheduleKind::kDualPipeV, 2}})
    for (const bool overlap : {false, true}) {
      const Layout layout = layout_for(
          {.kind = kind, .pp = 2, .virtual_stages = virtual_stages, .blocks = 4, .microbatches = 8, .overlap = overlap});
      const Program program = program_of(layout);
      for (int rank = 0; rank < 2; ++rank) {
        const bool head = layout.layers_of(rank).back() == layout.num_layers() - 1;
        EXPECT_EQ(after_each(memory_timeline(layout, program, rank)).back(), head ? 8 * kLoss : 0) << schedule_name(kind);
      }
    }
}

// Between I and W the operands of the weight gradients alone.
TEST(PipelineMemory, IReleasesWhatWDoesNotNeed) {
  const Layout layout = layout_for({.pp = 1, .blocks = 1});
  const std::vector<arch::LayerCost> c = layer_costs(layout, 0);
  std::vector<Action> actions;
  for (const K kind : {K::kForward, K::kBackwardInput, K::kBackwardWeight})
    for (int i = 0; i < 3; ++i) actions.push_back({.kind = kind, .layer = kind == K::kForward ? i : 2 - i, .microbatch = 0});
  const MemoryTimeline timeline = memory_timeline(layout, Program::of_ranks({actions}), 0);
  const int64_t h = c[1].output;
  EXPECT_THAT(after_each(timeline),
              ::testing::ElementsAre(c[0].kept + h, c[0].kept + c[1].kept + h, c[0].kept + c[1].kept + c[2].kept,
                                     c[0].kept + c[1].kept + c[2].held + h + kLoss,  // dx of the head
                                     c[0].kept + c[1].held + c[2].held + h + kLoss,
                                     c[0].held + c[1].held + c[2].held + kLoss, c[0].held + c[1].held + kLoss, c[0].held + kLoss, kLoss));
  const int64_t before = device_total(timeline.before);
  // I of the block: beside what the others keep and hold its own, dy and dx.
  EXPECT_EQ(device_total(timeline.points[4].within), before + c[0].kept + c[1].kept + c[2].held + 2 * h + c[1].input_workspace + kLoss);
  EXPECT_EQ(device_total(timeline.points[7].within), before + c[0].held + c[1].held + c[1].weight_workspace + kLoss);
  for (const MemoryPoint& point : timeline.points) EXPECT_GE(device_total(point.within), device_total(point.after));
  // Without dropout: both operands of four products and two norms (and statistics of two floats a row); dy is one of them.
  const auto& m = layout.model;
  const int64_t tokens = layout.micro_batch * layout.seq_len, width = m.heads * m.head_size;
  EXPECT_EQ(c[1].held, 4 * tokens * (8 * m.hidden + 3 * width + width + 2 * m.ffn) + 2 * 2 * 4 * tokens);
}

}  // namespace
}  // namespace lockstep::program

// Memory of ranks that hold sequences in parts: measured beside predicted, and the share of activations that each has.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/test_context.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::engine {
namespace {

using config::ContextKind;
using testing::ContextCase;

struct Compared {
  program::MemoryBytes predicted, measured;
};

// One step; by rank.
std::vector<Compared> step_of(const program::Layout& layout) {
  install_memory_tracking();
  std::vector<Compared> all(static_cast<size_t>(layout.mesh.world_size()));
  lockstep::testing::run_ranks(layout.mesh.world_size(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    executor.step(executor.load([&] { return testing::parts_of_microbatches(layout, world.rank(), 0); }), 1, 1e-3);
    all[static_cast<size_t>(world.rank())] = {program::predict_memory(layout, executor.program(), world.rank()), executor.measured_memory()};
  });
  return all;
}

// What is held is the predicted; workspaces of blocks that no query sees are not taken.
void expect_predicted(const ContextCase& c) {
  const std::vector<Compared> all = step_of(testing::layout_for(c));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto& [predicted, measured] = all[rank];
    const std::string where = cat(testing::text_of(c), ", rank ", rank, ": ");
    for (const auto category : {program::MemoryCategory::kParameters, program::MemoryCategory::kGradients, program::MemoryCategory::kOptimizer,
                                program::MemoryCategory::kActivations})
      EXPECT_NEAR(static_cast<double>(measured[category]), static_cast<double>(predicted[category]), 0.05 * static_cast<double>(predicted[category]))
          << where << program::category_name(category);
    const auto buffers = program::MemoryCategory::kBuffers;
    EXPECT_LE(static_cast<double>(measured[buffers]), 1.05 * static_cast<double>(predicted[buffers])) << where << "buffers";
    EXPECT_LE(static_cast<double>(measured.peak), 1.05 * static_cast<double>(predicted.peak)) << where << "peak";
  }
}

ContextCase case_of(ContextKind kind, int cp) {
  return {.base = {.preset = "llama-test", .dp = 1, .micro_batch = 2, .seq_len = 64},
          .cp = cp,
          .kind = kind,
          .inner = kind == ContextKind::k2d ? 2 : 1};
}

TEST(ContextMemory, IsWithinThePredicted) {
  for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllGather, ContextKind::kAllToAll})
    for (const int cp : {2, 4})
      for (const bool documents : {false, true}) {
        ContextCase c = case_of(kind, cp);
        c.documents = documents;
        expect_predicted(c);
      }
  expect_predicted(case_of(ContextKind::k2d, 4));
  for (const config::ContextSplit split : {config::ContextSplit::kZigzag, config::ContextSplit::kContiguous}) {
    ContextCase c = case_of(ContextKind::kRing, 2);
    c.split = split;
    c.window = 12;
    expect_predicted(c);
  }
}

TEST(ContextMemory, BesideAllElse) {
  for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllGather}) {
    ContextCase bf16 = case_of(kind, 2), tensor = bf16, again = bf16;
    bf16.base.preset = "gpt2-10m";  // packing areas of bf16 products are bounded by a constant: not for the smallest sizes
    bf16.base.precision = config::Precision::kBf16;
    expect_predicted(bf16);
    tensor.base.tp = 2;
    tensor.base.zero = 1;
    expect_predicted(tensor);
    for (const arch::Recompute recompute : {arch::Recompute::kSelective, arch::Recompute::kFull}) {
      again.base.recompute.assign(3, recompute);
      expect_predicted(again);
    }
  }
}

// Of experts the most that may come is predicted.
TEST(ContextMemory, OfLatentsIsWithinThePredicted) {
  for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllToAll, ContextKind::kAllGather}) {
    ContextCase c = case_of(kind, 2);
    c.base.preset = "deepseek-test";
    c.base.blocks = 2;
    for (const auto& [predicted, measured] : step_of(testing::layout_for(c))) {
      for (size_t i = 0; i < program::kNumMemoryCategories; ++i)
        EXPECT_LE(static_cast<double>(measured.bytes[i]), 1.05 * static_cast<double>(predicted.bytes[i]))
            << testing::text_of(c) << " " << program::category_name(static_cast<program::MemoryCategory>(i));
      EXPECT_LE(static_cast<double>(measured.peak), 1.05 * static_cast<double>(predicted.peak)) << testing::text_of(c);
    }
  }
}

program::Layout long_sequences(int cp, int64_t length) {
  ContextCase c = case_of(ContextKind::kRing, cp);
  c.base.micro_batch = 1;
  c.base.seq_len = length;
  c.global_batch = 1;
  program::Layout layout = testing::layout_for(c);
  layout.model.max_seq_len = length;
  return layout;
}

int64_t most_activations(const program::Layout& layout) {
  int64_t most = 0;
  for (const Compared& of_rank : step_of(layout)) most = std::max(most, of_rank.measured[program::MemoryCategory::kActivations]);
  return most;
}

void expect_equal_shares(int64_t length) {
  const auto whole = static_cast<double>(most_activations(long_sequences(1, length)));
  for (const int cp : {2, 4}) {
    const auto shared = static_cast<double>(most_activations(long_sequences(cp, length)));
    EXPECT_NEAR(shared, whole / cp, 0.05 * whole / cp) << "cp " << cp;
  }
}

TEST(ContextMemory, ActivationsAreSharedOut) { expect_equal_shares(1024); }
TEST(LongContextMemory, ActivationsAreSharedOut) { expect_equal_shares(8192); }

// A limit that one rank's step goes beyond, and each of four ranks stays below.
TEST(ContextMemory, WhatDoesNotFitOneRankTrainsOnFour) {
  const std::vector<Compared> of_four = step_of(long_sequences(4, 1024));
  int64_t most = 0;
  for (const Compared& of_rank : of_four) most = std::max(most, of_rank.measured.peak);
  program::Layout alone = long_sequences(1, 1024), together = long_sequences(4, 1024);
  alone.device_limit = together.device_limit = most + most / 20;
  EXPECT_THROW(step_of(alone), OutOfMemory);
  EXPECT_NO_THROW(step_of(together));
}

}  // namespace
}  // namespace lockstep::engine

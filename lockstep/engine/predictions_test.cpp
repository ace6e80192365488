// What program/ predicts of a step against what the engine does: the ledger to the byte, memory within 5 %.
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/engine/executor.h"
#include "lockstep/program/memory.h"
#include "lockstep/program/predict.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using config::DataParallel;
using config::Precision;
using program::MemoryCategory;
using ::testing::IsEmpty;

struct Case {
  std::string preset;
  int dp = 1;
  int64_t microbatches = 1;  // of two sequences
  DataParallel kind = DataParallel::kRing;
  Precision precision = Precision::kFp32;
  int64_t bucket_bytes = 64 * 1024;
  int64_t seq_len = 32;
};

program::Layout layout_of(const Case& c) {
  return {.model = arch::resolve_model({.preset = c.preset}, 1000),
          .mesh = mesh::Mesh::data_parallel(c.dp),
          .global_batch = 2 * c.dp * c.microbatches,
          .micro_batch = 2,
          .seq_len = c.seq_len,
          .precision = c.precision,
          .data_parallel = c.kind,
          .bucket_bytes = c.bucket_bytes};
}

std::vector<nn::Microbatch> batch_of(const program::Layout& layout, int rank) {
  std::vector<nn::Microbatch> microbatches;
  for (int64_t m = 0; m < layout.num_microbatches(); ++m) {
    nn::Microbatch microbatch;
    microbatch.tokens = at::randint(0, layout.model.vocab_size, {layout.micro_batch, layout.seq_len}, at::kLong);
    microbatch.targets = at::randint(0, layout.model.vocab_size, {layout.micro_batch, layout.seq_len}, at::kLong);
    microbatch.first_sample = program::microbatch_samples(layout, rank, m).begin;
    microbatches.push_back(microbatch);
  }
  return microbatches;
}

void check(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c.preset << " dp " << c.dp << " x " << c.microbatches << " kind "
                                    << static_cast<int>(c.kind) << " precision " << static_cast<int>(c.precision));
  const program::Layout layout = layout_of(c);
  const program::Program program = program::build_program(layout);
  testing::run_ranks(c.dp, [&](comm::World& world) {
    Groups groups(world, layout.mesh);
    Executor executor({.layout = layout}, groups);
    groups.take_ledger();
    for (int step = 1; step <= 2; ++step) {
      executor.step(batch_of(layout, world.rank()), step, 1e-3);
      const program::Ledger predicted = program::predict_ledger(layout, program, world.rank());
      EXPECT_THAT(program::Ledger::difference(predicted, groups.take_ledger()), IsEmpty());
    }
    const program::MemoryBytes predicted = program::predict_memory(layout, program, world.rank());
    const program::MemoryBytes measured = executor.measured_memory();
    for (size_t i = 0; i < program::kNumMemoryCategories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      EXPECT_NEAR(static_cast<double>(measured[category]), static_cast<double>(predicted[category]),
                  0.05 * static_cast<double>(predicted[category]))
          << "rank " << world.rank() << " " << program::category_name(category);
    }
  });
}

class Predictions : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_memory_tracking(); }
};

TEST_F(Predictions, HoldOnEveryLayout) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (int dp : {1, 2, 3})
      for (DataParallel kind : {DataParallel::kRing, DataParallel::kParameterServer})
        for (Precision precision : {Precision::kFp32, Precision::kBf16})
          check({.preset = preset, .dp = dp, .microbatches = 2, .kind = kind, .precision = precision});
}

TEST_F(Predictions, HoldForALargerModel) {
  for (Precision precision : {Precision::kFp32, Precision::kBf16})
    check({.preset = "gpt2-10m",
           .dp = 2,
           .microbatches = 1,
           .precision = precision,
           .bucket_bytes = 1 << 20,
           .seq_len = 128});
}

}  // namespace
}  // namespace lockstep::engine

// Small steps, where what a product packs and sums of parts are as large as what they are made for: no step takes more than is
// predicted, and a run that starts with that ends.
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_steps.h"
#include "lockstep/program/verify/verify.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;

// One step on every rank with the predicted peak as its limit: it would end in LS4001 beyond that.
void expect_enough(const program::Layout& layout, const std::string& what, double unused) {
  const int ranks = layout.mesh.world_size();
  lockstep::testing::run_ranks(ranks, [&](comm::World& world) {
    program::Layout limited = layout;
    limited.device_limit = program::predict_memory(layout, program::build_program(layout), world.rank()).peak;
    Groups groups(world, limited);
    Executor executor({.layout = limited}, groups);
    const std::string where = cat(what, ", ", program::describe(layout), ", rank ", world.rank());
    EXPECT_NO_THROW(executor.step(executor.load([&] { return microbatches(layout, world.rank(), 0); }), 1, 1e-3)) << where;
    const auto measured = static_cast<double>(executor.measured_memory().peak);
    const auto predicted = static_cast<double>(limited.device_limit);
    EXPECT_LE(measured, predicted) << where;
    EXPECT_GE(measured, predicted - unused) << where;
  });
}

constexpr int64_t kLengths[] = {1, 2, 3, 7, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64};

TEST(SmallMemory, OfEveryLengthIsEnoughAndHardlyMore) {
  install_memory_tracking();
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const int64_t seq_len : kLengths)
      for (const int64_t micro_batch : {1, 3}) {
        const Case c{.preset = preset, .dp = 1, .micro_batch = micro_batch, .seq_len = seq_len};
        expect_enough(layout_for(c, 2 * micro_batch), preset, 4096);
      }
}

TEST(SmallMemory, OfEveryLayoutIsEnough) {
  install_memory_tracking();
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const int64_t seq_len : {5, 16, 17, 40, 64})
      for (const int zero : {0, 2, 3})
        for (const int tp : {1, 2}) {
          Case c{.preset = preset, .dp = 2, .micro_batch = 1, .seq_len = seq_len, .dropout = seq_len % 2 == 0 ? 0.1 : 0.0, .tp = tp};
          c.zero = zero;
          c.sequence_parallel = seq_len != 40;
          expect_enough(layout_for(c, 4), cat(preset, ", zero ", zero), 1 << 20);
        }
  for (const auto schedule : {program::ScheduleKind::kOneFOneB, program::ScheduleKind::kZbH1})
    for (const int64_t seq_len : kLengths)
      for (const int tp : {1, 2}) {
        Case c{.preset = "llama-test", .dp = 1, .micro_batch = 1, .seq_len = seq_len, .tp = tp, .pp = 2, .schedule = schedule, .blocks = 4};
        expect_enough(layout_for(c, 4), "pipeline", 1 << 20);
      }
}

}  // namespace
}  // namespace lockstep::engine

// A step waits for the GPU once at LOSS and once at NORM, and nowhere else.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "gpu/step_waits.h"

namespace lockstep::engine {
namespace {

using arch::Recompute;
using engine::testing::Case;
using engine::testing::MayWait;

// Few rows: on the emulated GPU the threads of a kernel take turns.
void check(Case c, const MayWait& may = {}) {
  c.micro_batch = 1;
  c.seq_len = 8;
  const program::Layout layout = engine::testing::layout_for(c, /*global_batch=*/4);
  engine::testing::expect_waits(engine::testing::waits_of_a_step(layout), cat(c.preset, " ", program::describe(layout)), may);
}

TEST(Synchronisation, OncePerLossAndOncePerNorm) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
      check({.preset = preset, .dp = 1, .precision = precision, .dropout = 0.1});
}

TEST(Synchronisation, AlsoWithRecomputation) {
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull})
    check({.preset = "gpt2-test", .dp = 1, .dropout = 0.1, .recompute = {2, recompute}});
}

TEST(Synchronisation, AlsoWithActivationsOnTheHost) {
  const std::vector<Recompute> full(3, Recompute::kFull);
  check({.preset = "llama-test", .dp = 1, .recompute = full, .offload = {.activations = true}});
}

// Sums of gradients have come to the host by LOSS, which reads behind them.
TEST(Synchronisation, AlsoWithStatesOnTheHost) {
  check({.preset = "llama-test", .dp = 1, .offload = {.optimizer = true}});
  check({.preset = "llama-test", .dp = 1, .offload = {.optimizer = true, .parameters = true}});
}

// Where ranks exchange tensors through the host, calls that are waited for at once wait for the device as well; others run
// on a thread of their own.
TEST(Synchronisation, AlsoWhereRanksShareOutStates) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  for (const int zero : {0, 1, 2, 3})
    check({.preset = "llama-test", .dp = 2, .zero = zero}, {.in_loss = kAny, .in_norm = kAny});
}

}  // namespace
}  // namespace lockstep::engine

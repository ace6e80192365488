// Memory that runs out in a step, as a user reads it.
#include "lockstep/train/out_of_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/memory_tracker.h"
#include "lockstep/engine/test_steps.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/verify/verify.h"
#include "support/run_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

config::RunConfig configuration() {
  config::RunConfig config;
  config.model.preset = "gpt2-test";
  config.train.global_batch = 4;
  config.train.micro_batch = 2;
  config.train.seq_len = 64;
  return config;
}

TEST(OutOfMemory, HasTheTableOfBothAndTheWaysOut) {
  engine::install_memory_tracking();
  config::RunConfig config = configuration();
  program::Layout layout = program::make_layout(config, arch::resolve_model(config.model), 1);
  const int64_t peak = program::predict_memory(layout, program::build_program(layout), 0).peak;
  layout.device_limit = config.memory.device_limit.count = peak - 64 * 1024;
  lockstep::testing::run_ranks(1, [&](comm::World& world) {
    engine::Groups groups(world, layout);
    engine::Executor executor({.layout = layout}, groups);
    try {
      with_memory_table(config, layout, 0, [&] { executor.step(engine::testing::microbatches(layout, 0, 0), 1, 1e-3); });
      ADD_FAILURE() << "no error";
    } catch (const OutOfMemoryError& error) {
      EXPECT_EQ(error.message().code, "LS4001");
      EXPECT_THAT(error.message().what, HasSubstr("rank 0 (-) out of memory: backward of "));
      EXPECT_THAT(error.message().what, HasSubstr("free of memory.device_limit = "));
      EXPECT_THAT(error.message().what, ContainsRegex("predicted +measured\n"));
      for (const char* word : {"parameters", "activations", "peak", "cheapest ways out", "train.micro_batch = 1"})
        EXPECT_THAT(error.message().what, HasSubstr(word));
    }
  });
}

TEST(OutOfMemory, LeavesOtherErrorsAsTheyAre) {
  const config::RunConfig config = configuration();
  const program::Layout layout = program::make_layout(config, arch::resolve_model(config.model), 1);
  EXPECT_THROW(with_memory_table(config, layout, 0, [] { throw PeerLostError({.code = "LS3003", .what = "gone"}); }), PeerLostError);
}

}  // namespace
}  // namespace lockstep::train

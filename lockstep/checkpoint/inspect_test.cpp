#include "lockstep/checkpoint/inspect.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/save.h"
#include "support/folders.h"
#include "support/run_ranks.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// A run with steps 1 and 2, each of one fp32 parameter [4, 2] and its two moments.
fs::path run_with_two_steps() {
  const fs::path run = support::fresh_place("inspect");
  testing::run_ranks(1, [&](comm::World& world) {
    const auto communicator = world.communicator({0}, "world");
    std::vector<engine::StateTensor> state;
    for (const auto kind : {engine::StateKind::kParameter, engine::StateKind{"exp_avg"}, engine::StateKind{"exp_avg_sq"}})
      state.push_back({.name = "w", .kind = kind, .global_shape = {4, 2}, .offset = {0, 0}, .local = at::ones({4, 2})});
    for (const int64_t step : {1, 2}) {
      const TrainState progress{
          .step = step, .consumed_tokens = 1000, .model = {{"layers", 2}}, .version = "0.1.0", .world_size = 1};
      save({.directory = run / "checkpoints", .state = state, .train_state = progress, .world = *communicator});
    }
  });
  return run;
}

TEST(Inspect, SaysWhatIsInAStepAndWhetherItIsWhole) {
  const fs::path run = run_with_two_steps(), steps = run / "checkpoints";
  EXPECT_THAT(steps_of(run), ElementsAre(steps / "step-00000002", steps / "step-00000001"));
  EXPECT_EQ(steps_of(steps), steps_of(run));
  EXPECT_THAT(steps_of(steps / "step-00000001"), ElementsAre(steps / "step-00000001"));
  EXPECT_THROW(steps_of(run / "none"), CheckpointError);

  const StepReport whole = inspect_step(steps / "step-00000002");
  EXPECT_TRUE(whole.whole());
  EXPECT_EQ(whole.parameters, 8);
  EXPECT_EQ(whole.model_tensors.at("F32"), 1);
  EXPECT_EQ(whole.optim_tensors.at("F32"), 2);
  EXPECT_THAT(report_text(whole), HasSubstr("every checksum matches"));
  const OrderedJson json = report_json(whole);
  EXPECT_EQ(json["step"], 2);
  EXPECT_EQ(json["tokens"], 1000);
  EXPECT_EQ(json["files"].size(), 3u);

  const fs::path shard = steps / "step-00000001/model/shard-00001-model-00001-of-00001.safetensors";
  std::string bytes = read_file(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(shard, bytes);
  const StepReport damaged = inspect_step(steps / "step-00000001");
  EXPECT_THAT(damaged.problems, ElementsAre(HasSubstr("tensor 'w' is damaged")));
  EXPECT_THAT(report_text(damaged), HasSubstr("BROKEN"));
  fs::remove(shard);
  EXPECT_THAT(inspect_step(steps / "step-00000001").problems, ElementsAre(HasSubstr("missing")));
}

}  // namespace
}  // namespace lockstep::checkpoint

#include "lockstep/train/changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/config/load.h"

namespace lockstep::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

config::RunConfig configuration(const std::string& steps, const std::string& optimizer) {
  return config::load_config_text("[train]\nsteps = " + steps + "\n[optimizer]\nwarmup_steps = 0\n" + optimizer, "test").config;
}

checkpoint::TrainState state_of(const config::RunConfig& config, int ranks) {
  return {.step = 10,
          .data = {{"tokens", 1000}, {"shuffle", true}},
          .settings = settings_of(config),
          .world_size = ranks,
          .layout = "dp " + std::to_string(ranks)};
}

TEST(Changes, NoneIsNothing) {
  const config::RunConfig config = configuration("20", "schedule = \"cosine\"\n");
  EXPECT_THAT(changes(state_of(config, 2), state_of(config, 2), config), IsEmpty());
}

// Of a dense model a checkpoint says nothing of experts.
TEST(Changes, OfWhatBalancesExpertsAreToldAgainstTheDefaults) {
  const config::RunConfig dense = configuration("20", "");
  config::RunConfig experts = dense;
  experts.moe.aux_coefficient = 0.5;
  const auto settings = settings_of(dense);
  for (const auto& [key, value] : settings.items()) EXPECT_FALSE(key.starts_with("moe.")) << key << " = " << value;
  EXPECT_THAT(changes(state_of(dense, 2), state_of(experts, 2), experts), ElementsAre(Pair("moe.aux_coefficient", "0.01 -> 0.5")));
  EXPECT_THAT(changes(state_of(experts, 2), state_of(dense, 2), dense), ElementsAre(Pair("moe.aux_coefficient", "0.5 -> 0.01")));
  EXPECT_THAT(changes(state_of(experts, 2), state_of(experts, 2), experts), IsEmpty());
}

// Linear from 0.1 to 0: step i of n, counted from 0, has 0.1 (1 - i / (n - 1)).
TEST(Changes, OfTheScheduleSayWhatBecomesOfTheRate) {
  const config::RunConfig before = configuration("11", "schedule = \"linear\"\nlr = 0.1\nmin_lr = 0.0\n");
  const config::RunConfig now = configuration("21", "schedule = \"linear\"\nlr = 0.1\nmin_lr = 0.0\n");
  EXPECT_THAT(changes(state_of(before, 2), state_of(now, 4), now),
              ElementsAre(Pair("train.steps", "11 -> 21"), Pair("ranks", "2 -> 4"), Pair("layout", "dp 2 -> dp 4"),
                          Pair("learning rate", "0.01 at step 10 -> 0.05 at step 11 -> 0 at step 21")));
  // At its last step.
  const config::RunConfig last = configuration("11", "schedule = \"linear\"\nlr = 0.2\nmin_lr = 0.0\n");
  EXPECT_THAT(changes(state_of(before, 2), state_of(last, 2), last),
              ElementsAre(Pair("optimizer.lr", "0.1 -> 0.2"), Pair("learning rate", "0.01 at step 10 -> 0 at step 11")));
}

TEST(Changes, OfTheDataAreToldWhereTheyAreAllowed) {
  const config::RunConfig config = configuration("20", "");
  checkpoint::TrainState now = state_of(config, 1);
  now.data["tokens"] = 2000;
  EXPECT_THAT(changes(state_of(config, 1), now, config), ElementsAre(Pair("data.tokens", "1000 -> 2000")));
}

TEST(Changes, ACheckpointWithoutSettingsIsComparedInTheRest) {
  const config::RunConfig config = configuration("20", "");
  checkpoint::TrainState saved = state_of(config, 1);
  saved.settings = Json::object();
  EXPECT_THAT(changes(saved, state_of(config, 2), config), ElementsAre(Pair("ranks", "1 -> 2"), Pair("layout", "dp 1 -> dp 2")));
}

}  // namespace
}  // namespace lockstep::train

// Checkpoints of executors: a run is saved by one layout, loaded and saved again by the next, and so on. Parameters and
// moments keep every bit.
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <tuple>

#include "lockstep/arch/model_config.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/checkpoint/shard_writer.h"
#include "lockstep/checkpoint/test_shards.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_steps.h"
#include "support/folders.h"
#include "support/run_ranks.h"

namespace lockstep::checkpoint {
namespace {

using engine::Executor;
using engine::Groups;
using engine::testing::Case;
using engine::testing::layout_for;
namespace fs = std::filesystem;

fs::path fresh_folder(const std::string& name) { return support::fresh_place("zero-" + name); }

void save_step(Executor& executor, Groups& groups, const fs::path& directory, int64_t step) {
  const auto state = executor.store().state();
  const TrainState progress{.step = step, .model = arch::model_json(executor.layout().model), .version = "1"};
  save({.directory = directory, .state = state, .train_state = progress, .world = groups.world()});
}

// `from` empty: two steps of training. Otherwise what was saved there, and nothing else. Saves as `step`.
void run(const Case& c, const fs::path& from, const fs::path& directory, int64_t step) {
  const program::Layout layout = layout_for(c, 12);
  lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .seed = from.empty() ? uint64_t{1} : uint64_t{2}}, groups);
    if (from.empty()) {
      for (int64_t index = 0; index < 2; ++index)
        executor.step(engine::testing::microbatches(layout, world.rank(), index), index + 1, 1e-3);
    } else {
      const auto state = executor.store().state();
      ASSERT_TRUE(resume({.path = from, .state = state, .world = groups.world(), .model = arch::model_json(layout.model)}));
      executor.store().loaded();
    }
    save_step(executor, groups, directory, step);
  });
}

// What a step holds, as one rank has it.
std::vector<engine::StateTensor> content(const arch::ModelConfig& model, const fs::path& step, bool bf16) {
  auto state = sharded_state(model, {.bf16 = bf16}, 0);
  load(step, state);
  return state;
}

void check_chain(const std::vector<Case>& chain) {
  const arch::ModelConfig model = layout_for(chain[0], 12).model;
  const bool bf16 = chain[0].precision == config::Precision::kBf16;
  const fs::path directory = fresh_folder("chain");
  run(chain[0], {}, directory, 1);
  const auto expected = content(model, directory / step_name(1), bf16);
  for (size_t i = 1; i < chain.size(); ++i) {
    SCOPED_TRACE(cat(chain[i].preset, " ", program::describe(layout_for(chain[i - 1], 12)), " -> ",
                     program::describe(layout_for(chain[i], 12))));
    const auto step = static_cast<int64_t>(i + 1);
    run(chain[i], directory / step_name(step - 1), directory, step);
    const auto actual = content(model, directory / step_name(step), bf16);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t t = 0; t < actual.size(); ++t) {
      EXPECT_GT(expected[t].local.count_nonzero().item<int64_t>(), 0) << saved_name(expected[t]);
      EXPECT_TRUE(at::equal(actual[t].local, expected[t].local)) << saved_name(expected[t]);
    }
  }
}

Case layout(const std::string& preset, int zero, int replicate, int shard, int tp = 1) {
  return {.preset = preset, .dp = replicate * shard, .micro_batch = 1, .tp = tp, .vocab_size = 511, .zero = zero,
          .dp_replicate = zero > 0 ? replicate : 1};
}

TEST(ZeroLayouts, AnyLayoutGoesOnFromAnyOther) {
  for (const std::string preset : {"gpt2-test", "llama-test"})
    check_chain({layout(preset, 3, 1, 3), layout(preset, 1, 1, 1, 2), layout(preset, 0, 1, 1), layout(preset, 1, 1, 4),
                 layout(preset, 3, 2, 2), layout(preset, 2, 1, 3), layout(preset, 3, 1, 2, 2), layout(preset, 0, 2, 1),
                 layout(preset, 2, 2, 2), layout(preset, 1, 1, 2, 2), layout(preset, 3, 1, 4), layout(preset, 0, 1, 1, 2),
                 layout(preset, 3, 2, 2, 2), layout(preset, 0, 1, 1)});
}

// Layers of two groups, of which one is shared out over tp too, from and to layers of one.
TEST(ZeroLayouts, LayersOfTwoGroupsToo) {
  for (const std::string preset : {"gpt2-test", "llama-test"}) {
    std::vector<Case> chain = {layout(preset, 1, 1, 2, 2), layout(preset, 0, 1, 1),    layout(preset, 3, 2, 2, 2), layout(preset, 2, 1, 3),
                               layout(preset, 2, 1, 2, 2), layout(preset, 0, 2, 1, 2), layout(preset, 1, 1, 2, 2), layout(preset, 0, 1, 1)};
    for (size_t i = 0; i + 2 < chain.size(); ++i) chain[i].row_groups = chain[i].tp > 1;
    check_chain(chain);
  }
}

Case experts(Case c, int ep, int etp = 1) {
  c.preset = "mixtral-test";
  c.ep = ep;
  c.etp = etp;
  return c;
}

// Experts over ep x etp; shared out over more ranks than the dense parameters, or over fewer; in a pipeline.
TEST(ZeroLayouts, ExpertsToo) {
  const std::string any;
  Case piped = experts(layout(any, 0, 2, 1), 2);
  piped.pp = 2;
  Case rows = experts(layout(any, 1, 1, 2, 2), 2);
  rows.row_groups = true;
  std::vector<Case> chain = {experts(layout(any, 0, 4, 1), 4),    experts(layout(any, 0, 1, 1), 1),       experts(layout(any, 0, 2, 1), 2),
                             experts(layout(any, 0, 2, 1, 2), 2), experts(layout(any, 1, 1, 4), 2),       experts(layout(any, 3, 1, 4), 4),
                             experts(layout(any, 3, 1, 2, 2), 1, 2), piped, experts(layout(any, 2, 2, 2), 2), experts(layout(any, 1, 1, 1, 2), 2),
                             experts(layout(any, 3, 1, 3), 1),    rows,                                   experts(layout(any, 0, 1, 1, 2), 2)};
  check_chain(chain);
  for (Case& c : chain) c.precision = config::Precision::kBf16;
  check_chain({chain[5], chain[3], chain[8], chain[0]});
}

// The losses of the third and fourth step, from a checkpoint of the second (`from`) or from the beginning, which saves that one.
std::vector<double> later_losses(const Case& c, const fs::path& directory, bool from) {
  const program::Layout layout = layout_for(c, 12);
  std::vector<double> losses;
  lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .seed = from ? uint64_t{2} : uint64_t{1}}, groups);
    const auto step = [&](int64_t index) {
      return executor.step(engine::testing::microbatches(layout, world.rank(), index), index + 1, 1e-3).loss;
    };
    if (from) {
      const auto state = executor.store().state();
      ASSERT_TRUE(resume({.path = directory, .state = state, .world = groups.world(), .model = arch::model_json(layout.model)}));
      executor.store().loaded();
    } else {
      step(0);
      step(1);
      save_step(executor, groups, directory, 2);
    }
    const std::vector<double> both = {step(2), step(3)};
    if (world.rank() == 0) losses = both;
  });
  return losses;
}

TEST(ZeroLayouts, TrainingWithFourGroupsOfExpertsGoesOnWithOthers) {
  const std::string any;
  const fs::path directory = fresh_folder("goes-on");
  const std::vector<double> expected = later_losses(experts(layout(any, 0, 4, 1), 4), directory, /*from=*/false);
  ASSERT_EQ(expected.size(), 2u);
  for (const Case& c : {experts(layout(any, 0, 1, 1), 1), experts(layout(any, 0, 2, 1), 2), experts(layout(any, 0, 2, 1, 2), 2),
                        experts(layout(any, 0, 1, 1, 2), 2), experts(layout(any, 3, 1, 4), 2)}) {
    SCOPED_TRACE(program::describe(layout_for(c, 12)));
    const std::vector<double> actual = later_losses(c, directory, /*from=*/true);
    ASSERT_EQ(actual.size(), 2u);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5 * expected[i]);
  }
}

TEST(ZeroLayouts, MasterWeightsToo) {
  std::vector<Case> chain = {layout("gpt2-test", 3, 1, 3), layout("gpt2-test", 1, 1, 2, 2), layout("gpt2-test", 0, 1, 1),
                             layout("gpt2-test", 2, 2, 2), layout("gpt2-test", 0, 2, 1)};
  for (Case& c : chain) c.precision = config::Precision::kBf16;
  check_chain(chain);
}

// All that one rank has of a step, by the names in the files.
std::map<std::string, at::Tensor> loaded_alone(Case c, const fs::path& step) {
  c = {.preset = c.preset, .dp = 1, .micro_batch = 1, .vocab_size = c.vocab_size, .optimizer = c.optimizer};
  const program::Layout layout = layout_for(c, 12);
  std::map<std::string, at::Tensor> found;
  lockstep::testing::run_ranks(1, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout}, groups);
    const auto state = executor.store().state();
    ASSERT_TRUE(resume({.path = step, .state = state, .world = groups.world(), .model = arch::model_json(layout.model)}));
    for (const engine::StateTensor& tensor : state) found[saved_name(tensor)] = tensor.local.clone();
  });
  return found;
}

// Matrices have a momentum and no moments, all else has moments.
TEST(ZeroLayouts, StatesOfMuonGoFromAnyLayoutToAnyOther) {
  std::vector<Case> chain = {layout("llama-test", 3, 1, 3),    layout("llama-test", 0, 1, 1, 2), layout("llama-test", 1, 1, 4),
                             layout("llama-test", 2, 1, 2, 2), layout("llama-test", 0, 2, 1),    layout("llama-test", 3, 2, 2)};
  chain[2].offload = {.optimizer = true};
  for (Case& c : chain) c.optimizer = config::OptimizerKind::kMuon;
  const fs::path directory = fresh_folder("muon");
  run(chain[0], {}, directory, 1);
  const auto expected = loaded_alone(chain[0], directory / step_name(1));
  EXPECT_TRUE(expected.contains("optim.momentum_buffer.blocks.0.mlp.up.weight"));
  EXPECT_FALSE(expected.contains("optim.exp_avg.blocks.0.mlp.up.weight"));
  EXPECT_TRUE(expected.contains("optim.exp_avg.head.norm.weight"));
  for (size_t i = 1; i < chain.size(); ++i) {
    SCOPED_TRACE(program::describe(layout_for(chain[i], 12)));
    const auto step = static_cast<int64_t>(i + 1);
    run(chain[i], directory / step_name(step - 1), directory, step);
    for (const auto& [name, values] : loaded_alone(chain[i], directory / step_name(step)))
      EXPECT_TRUE(at::equal(values, expected.at(name))) << name;
  }
}

TEST(ZeroLayouts, StatesOfAnotherOptimizerAreRefusedByName) {
  Case c = layout("llama-test", 1, 1, 1);
  const fs::path directory = fresh_folder("other");
  run(c, {}, directory, 1);
  c.optimizer = config::OptimizerKind::kMuon;
  try {
    loaded_alone(c, directory / step_name(1));
    FAIL() << "made up a momentum";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.message().code, "LS1308");
    EXPECT_NE(error.message().what.find("optim.momentum_buffer.blocks.0."), std::string::npos) << error.what();
    EXPECT_NE(error.message().way_out.find("optimizer.kind"), std::string::npos) << error.what();
  }
}

// What lives on the host is saved and loaded as what does not.
TEST(ZeroLayouts, OffloadedStates) {
  constexpr program::Offload kOptimizer{.optimizer = true}, kBoth{.optimizer = true, .parameters = true};
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
    std::vector<Case> chain;
    for (const auto& [zero, dp, offload] : {std::tuple{3, 3, kBoth}, {0, 1, kOptimizer}, {1, 2, kOptimizer}, {0, 1, {}}, {0, 2, kBoth},
                                            {2, 3, kOptimizer}, {3, 2, {}}, {3, 2, kOptimizer}, {0, 1, kBoth}}) {
      Case c = layout("gpt2-test", zero, zero > 0 ? 1 : dp, zero > 0 ? dp : 1);
      c.precision = precision;
      c.offload = offload;
      chain.push_back(c);
    }
    check_chain(chain);
  }
}

}  // namespace
}  // namespace lockstep::checkpoint

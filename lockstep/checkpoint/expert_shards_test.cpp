// Experts that lie over the ranks as edp x ep x etp: saved by any such layout, loaded, exported and imported by any other.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "lockstep/arch/hf_config.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/diff.h"
#include "lockstep/checkpoint/hf_export.h"
#include "lockstep/checkpoint/hf_import.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/checkpoint/shard_writer.h"
#include "lockstep/checkpoint/step_model.h"
#include "lockstep/checkpoint/test_hf_model.h"
#include "lockstep/checkpoint/test_shards.h"
#include "support/run_ranks.h"

namespace lockstep::checkpoint {
namespace {

using engine::StateKind;
using engine::StateTensor;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// With and without ranks that hold the same experts; experts shared out while nothing else is, and the other way round; cuts inside
// rows (edp 3).
const std::vector<Sharding> kLayouts = {
    {},
    {.replicate = 4, .ep = 4},
    {.replicate = 2, .ep = 2},
    {.replicate = 2, .tp = 2, .ep = 2},
    {.tp = 2, .etp = 2},
    {.replicate = 2, .tp = 2, .ep = 2, .etp = 2},
    {.replicate = 2, .ep = 1, .etp = 2},
    {.zero = 1, .shard = 4, .ep = 2},
    {.zero = 3, .shard = 4, .ep = 4},
    {.zero = 3, .replicate = 2, .shard = 2, .ep = 2},
    {.zero = 1, .tp = 4, .ep = 2},
    {.zero = 2, .shard = 4, .tp = 2, .ep = 2, .etp = 2},
    {.zero = 3, .shard = 6, .ep = 2},
};
const std::vector<arch::ModelConfig> kModels = {tiny_model(arch::Family::kMixtral), tiny_model(arch::Family::kQwen3Moe)};

TrainState train_state(const arch::ModelConfig& model) { return {.step = 7, .model = arch::model_json(model), .version = "1"}; }

using Keep = std::function<bool(const StateTensor&)>;

// The folder of the step; of each rank's state only what `keep` says, where it is given.
fs::path save_as(const std::string& name, const arch::ModelConfig& model, const Sharding& layout, const Keep& keep = {}) {
  const fs::path directory = fresh_folder("experts-" + name);
  testing::run_ranks(layout.ranks(), [&](comm::World& world) {
    auto state = filled_state(model, layout, world.rank());
    if (keep) std::erase_if(state, [&](const StateTensor& tensor) { return !keep(tensor); });
    const auto all = world.all_ranks("world");
    save({.directory = directory, .state = state, .train_state = train_state(model), .world = *all});
  });
  return directory / step_name(7);
}

void expect_values(const std::vector<arch::ParamSpec>& table, const std::vector<StateTensor>& state) {
  for (const StateTensor& tensor : state)
    EXPECT_TRUE(at::equal(tensor.local, values_of(table, tensor))) << saved_name(tensor) << shape_text(tensor.offset);
}

TEST(ExpertShards, AnyLayoutLoadsWhatAnyLayoutSaved) {
  for (const arch::ModelConfig& model : kModels) {
    const auto table = arch::param_table(model);
    for (Sharding from : kLayouts) {
      from.bf16 = model.family == arch::Family::kQwen3Moe;
      const fs::path step = save_as("pairs", model, from);
      EXPECT_EQ(verify_sums(step, read_manifest(step)), std::vector<std::string>());
      for (Sharding to : kLayouts) {
        to.bf16 = from.bf16;
        SCOPED_TRACE(cat(from.text(), " -> ", to.text()));
        for (int rank = 0; rank < to.ranks(); ++rank) {
          const auto state = sharded_state(model, to, rank);
          load(step, state);
          expect_values(table, state);
        }
      }
    }
  }
}

// The files that hold a piece of the tensor, by the number of the rank.
std::set<int> writers(const Manifest& manifest, const std::string& name) {
  std::set<int> ranks;
  for (const Piece& piece : manifest.tensors.at(name).pieces) ranks.insert(std::stoi(piece.file.substr(piece.file.find("shard-") + 6, 5)) - 1);
  return ranks;
}

TEST(ExpertShards, WhoHasAnExpertWritesIt) {
  const arch::ModelConfig& model = kModels[0];  // 8 experts
  const Manifest alone = read_manifest(save_as("alone", model, {.replicate = 4, .ep = 4}));
  EXPECT_EQ(writers(alone, "blocks.1.experts.0.gate.weight"), (std::set<int>{0}));
  EXPECT_EQ(writers(alone, "optim.exp_avg.blocks.1.experts.5.down.weight"), (std::set<int>{2}));
  EXPECT_EQ(writers(alone, "blocks.1.experts.7.up.weight"), (std::set<int>{3}));
  EXPECT_EQ(writers(alone, "blocks.1.experts.router.weight"), (std::set<int>{0, 1, 2, 3}));
  const Manifest twice = read_manifest(save_as("twice", model, {.replicate = 4, .ep = 2}));
  EXPECT_EQ(writers(twice, "blocks.0.experts.3.gate.weight"), (std::set<int>{0, 2}));
  EXPECT_EQ(writers(twice, "blocks.0.experts.4.down.weight"), (std::set<int>{1, 3}));
  const Manifest cut = read_manifest(save_as("cut", model, {.tp = 4, .ep = 2, .etp = 2}));
  EXPECT_EQ(writers(cut, "blocks.0.experts.4.down.weight"), (std::set<int>{2, 3}));
}

TEST(ExpertShards, AResumeOnOtherRanks) {
  const arch::ModelConfig& model = kModels[1];
  const auto table = arch::param_table(model);
  const fs::path step = save_as("resume", model, {.replicate = 4, .ep = 4});
  for (const Sharding& to : {Sharding{}, Sharding{.replicate = 2, .ep = 2}, Sharding{.replicate = 2, .tp = 2, .ep = 2}}) {
    testing::run_ranks(to.ranks(), [&](comm::World& world) {
      const auto state = sharded_state(model, to, world.rank());
      const auto all = world.all_ranks("world");
      ASSERT_TRUE(resume({.path = step.parent_path(), .state = state, .world = *all, .model = arch::model_json(model)}));
      expect_values(table, state);
    });
  }
}

// One rank alone misses something; all of them stop, and the tensor is named.
TEST(ExpertShards, AnExpertThatNobodySavedIsNamedOnAllRanks) {
  const arch::ModelConfig& model = kModels[0];
  const std::string lost = "blocks.1.experts.6.down.weight";
  const auto resume_on = [&](const fs::path& step, const Sharding& to, const std::string& code) {
    testing::run_ranks(to.ranks(), [&](comm::World& world) {
      const auto state = sharded_state(model, to, world.rank());
      const auto all = world.all_ranks("world");
      try {
        resume({.path = step, .state = state, .world = *all, .model = arch::model_json(model)});
        ADD_FAILURE() << "rank " << world.rank() << " went on without " << lost;
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.message().code, code) << error.what();
        EXPECT_THAT(error.message().what, HasSubstr(lost));
      }
    });
  };
  const fs::path parameter = save_as("lost", model, {.replicate = 2, .ep = 2}, [&](const StateTensor& t) { return t.name != lost; });
  resume_on(parameter, {.replicate = 4, .ep = 4}, "LS1307");
  try {
    StepModel broken(parameter);
    ADD_FAILURE() << "a model without " << lost;
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.message().what, HasSubstr("lacks " + lost + " [24, 40]"));
  }
  const fs::path moment = save_as("moment", model, {.replicate = 2, .ep = 2}, [&](const StateTensor& t) {
    return t.name != lost || t.kind != StateKind{"exp_avg"};
  });
  resume_on(moment, {.replicate = 4, .ep = 4}, "LS1308");
}

TEST(ExpertShards, AnotherNumberOfExpertsIsAnotherModel) {
  const arch::ModelConfig& model = kModels[0];
  arch::ModelConfig fewer = model;
  fewer.experts.count = 4;
  const fs::path step = save_as("fewer", fewer, {.replicate = 2, .ep = 2});
  const auto refusal = [&](const arch::ModelConfig& wanted, const fs::path& from) {
    std::string text;
    testing::run_ranks(1, [&](comm::World& world) {
      const auto state = sharded_state(wanted, {}, 0);
      const auto all = world.all_ranks("world");
      try {
        resume({.path = from, .state = state, .world = *all, .model = arch::model_json(wanted)});
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.message().code, "LS1307");
        text = error.message().what;
      }
    });
    return text;
  };
  EXPECT_THAT(refusal(model, step), HasSubstr("settings differ"));
  EXPECT_THAT(refusal(fewer, save_as("more", model, {})), HasSubstr("settings differ"));
  // The same without the model's word for it.
  try {
    load(step, sharded_state(model, {.replicate = 4, .ep = 4}, 3));
    ADD_FAILURE() << "made up two experts";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.message().code, "LS1307");
    EXPECT_THAT(error.message().what, HasSubstr("blocks.0.experts.6.gate.weight   not in the checkpoint   config [40, 24]"));
  }
}

TEST(ExpertShards, SurplusExpertsAreNamed) {
  const arch::ModelConfig& model = kModels[0];
  arch::ModelConfig more = model;
  more.experts.count = 9;
  const fs::path directory = fresh_folder("experts-surplus");
  testing::run_ranks(1, [&](comm::World& world) {
    const auto all = world.all_ranks("world");
    auto state = filled_state(more, {}, 0);
    std::erase_if(state, [](const StateTensor& t) { return t.name.ends_with("router.weight"); });
    for (const StateTensor& t : filled_state(model, {}, 0))
      if (t.name.ends_with("router.weight")) state.push_back(t);
    save({.directory = directory, .state = state, .train_state = train_state(model), .world = *all});
  });
  try {
    StepModel broken(directory / step_name(7));
    ADD_FAILURE() << "a ninth expert";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.message().code, "LS1307");
    EXPECT_THAT(error.message().what, HasSubstr("also has blocks.0.experts.8.down.weight [24, 40]"));
  }
}

TEST(ExpertShards, ExportsAreTheSameBytesAndComeBack) {
  for (const arch::ModelConfig& model : kModels) {
    const auto table = arch::param_table(model);
    std::string expected;
    for (const Sharding& layout : kLayouts) {
      SCOPED_TRACE(layout.text());
      const fs::path run = fresh_folder("experts-exports"), back = run / "back";
      StepModel step(save_as("export", model, layout));
      export_hf({.step = step, .directory = back, .config = arch::hf_config_json(model)});
      const std::string bytes = read_file(back / kHfWeights);
      if (expected.empty()) expected = bytes;
      EXPECT_EQ(bytes, expected);
      EXPECT_EQ(arch::load_hf_config(back).model, model);
      EXPECT_TRUE(diff_models(step.path().string(), "hf:" + back.string()).equal_values());
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        const auto state = sharded_state(model, layout, rank, /*optimizer=*/false);
        import_hf(back, model, state);
        expect_values(table, state);
      }
    }
  }
}

TEST(ExpertShards, InspectSeesWholeExperts) {
  for (const arch::ModelConfig& model : kModels) {
    const StepReport report = inspect_step(save_as("inspect", model, {.zero = 3, .shard = 6, .ep = 2}));
    EXPECT_TRUE(report.whole()) << report_text(report);
    EXPECT_EQ(report.parameters, arch::num_parameters(model));
    EXPECT_EQ(report.model_tensors.at("F32"), std::ssize(arch::param_table(model)));
  }
}

}  // namespace
}  // namespace lockstep::checkpoint

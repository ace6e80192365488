// Ranks that hold several rectangles of a tensor, or none: saved by any (zero, dp_replicate, dp_shard, tp), loaded,
// exported and imported by any other.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/async_save.h"
#include "lockstep/checkpoint/diff.h"
#include "lockstep/checkpoint/hf_export.h"
#include "lockstep/checkpoint/hf_import.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/checkpoint/shard_writer.h"
#include "lockstep/checkpoint/test_hf_model.h"
#include "lockstep/checkpoint/test_shards.h"
#include "support/run_ranks.h"

namespace lockstep::checkpoint {
namespace {

using engine::StateKind;
using engine::StateTensor;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const std::vector<Sharding> kLayouts = {
    {},
    {.replicate = 2},
    {.zero = 1, .shard = 3},
    {.zero = 1, .shard = 2, .tp = 2},
    {.zero = 2, .replicate = 2, .shard = 2},
    {.zero = 3, .shard = 2},
    {.zero = 3, .shard = 3},
    {.zero = 3, .shard = 2, .tp = 2},
    {.zero = 3, .replicate = 2, .shard = 2, .tp = 2},
};
arch::ModelConfig tiny_model(arch::Family family, int64_t vocab_size) {
  arch::ModelConfig model = checkpoint::tiny_model(family, /*tied=*/family == arch::Family::kGpt2);
  model.vocab_size = vocab_size;
  return model;
}
// Cuts fall into rows. 201 rows of the first embedding and 16 of positions over 3 ranks: the second one has the rest of
// a row, whole rows and the beginning of a row.
const std::vector<arch::ModelConfig> kModels = {tiny_model(arch::Family::kGpt2, 201), tiny_model(arch::Family::kLlama, 61)};

void on_ranks(int n, const std::function<void(comm::World&, comm::Communicator&)>& body) {
  testing::run_ranks(n, [&](comm::World& world) { body(world, *world.all_ranks("world")); });
}

TrainState train_state(const arch::ModelConfig& model) {
  return {.step = 7, .consumed_samples = 70, .model = arch::model_json(model), .version = "1"};
}

// The folder of the step.
fs::path save_as(const std::string& name, const arch::ModelConfig& model, const Sharding& layout) {
  const fs::path directory = fresh_folder("shards-" + name);
  on_ranks(layout.ranks(), [&](comm::World& world, comm::Communicator& all) {
    const auto state = filled_state(model, layout, world.rank());
    save({.directory = directory, .state = state, .train_state = train_state(model), .world = all});
  });
  return directory / step_name(7);
}

void expect_values(const arch::ModelConfig& model, const std::vector<StateTensor>& state) {
  const auto table = arch::param_table(model);
  for (const StateTensor& tensor : state)
    EXPECT_TRUE(at::equal(tensor.local, values_of(table, tensor))) << saved_name(tensor) << shape_text(tensor.offset);
}

TEST(Shards, AnyLayoutLoadsWhatAnyLayoutSaved) {
  for (const arch::ModelConfig& model : kModels)
    for (const Sharding& from : kLayouts) {
      const fs::path step = save_as("pairs", model, from);
      EXPECT_EQ(verify_sums(step, read_manifest(step)), std::vector<std::string>());
      for (const Sharding& to : kLayouts) {
        SCOPED_TRACE(cat(from.text(), " -> ", to.text()));
        for (int rank = 0; rank < to.ranks(); ++rank) {
          const auto state = sharded_state(model, to, rank);
          EXPECT_EQ(load(step, state), train_state(model));
          expect_values(model, state);
        }
      }
    }
}

TEST(Shards, PrecisionIsConvertedFromTheBestCopy) {
  for (const arch::ModelConfig& model : kModels)
    for (const bool bf16 : {false, true}) {
      const fs::path step = save_as("precision", model, {.zero = 3, .shard = 3, .bf16 = bf16});
      for (const Sharding to : {Sharding{}, Sharding{.zero = 1, .shard = 2, .bf16 = true}, Sharding{.zero = 3, .shard = 2, .tp = 2},
                                Sharding{.zero = 3, .shard = 4, .bf16 = true}})
        for (int rank = 0; rank < to.ranks(); ++rank) {
          const auto state = sharded_state(model, to, rank);
          load(step, state);
          expect_values(model, state);
        }
    }
}

TEST(Shards, ParametersAloneAndAResume) {
  const arch::ModelConfig& model = kModels[1];
  const fs::path step = save_as("resume", model, {.zero = 3, .replicate = 2, .shard = 2});
  const auto parameters = sharded_state(model, {}, 0, /*optimizer=*/false);
  load_parameters_only(step, parameters);
  expect_values(model, parameters);
  const Sharding to{.zero = 3, .shard = 3};
  on_ranks(to.ranks(), [&](comm::World& world, comm::Communicator& all) {
    const auto state = sharded_state(model, to, world.rank());
    const auto resumed = resume({.path = step.parent_path(), .state = state, .world = all, .model = arch::model_json(model)});
    ASSERT_TRUE(resumed.has_value());
    EXPECT_EQ(resumed->path, step);
    expect_values(model, state);
  });
}

// Rows that a cut falls into: the rest of one, whole ones, the beginning of one. Each is a piece in a file of its own,
// as a file has one piece of a tensor.
TEST(Shards, ARankWritesAsManyFilesAsItHasPiecesOfATensor) {
  const Sharding layout{.zero = 3, .shard = 3};
  const arch::ModelConfig& model = kModels[0];
  const fs::path step = save_as("files", model, layout);
  const Manifest manifest = read_manifest(step);
  size_t most = 0;
  std::set<std::string> held;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    std::map<std::string, size_t> pieces;
    for (const StateTensor& tensor : sharded_state(model, layout, rank)) most = std::max(most, ++pieces[saved_name(tensor)]);
    for (const auto& [name, count] : pieces) held.insert(cat(rank, name));
  }
  EXPECT_EQ(most, 3u);
  EXPECT_LT(held.size(), 3 * manifest.tensors.size()) << "some rank holds nothing of some tensor";
  for (const auto& [name, tensor] : manifest.tensors) {
    std::set<std::string> files;
    for (const Piece& piece : tensor.pieces) EXPECT_TRUE(files.insert(piece.file).second) << name << " " << piece.file;
  }
  EXPECT_TRUE(manifest.files.contains("model/shard-00002-model-00003-of-00003.safetensors"));
  EXPECT_FALSE(manifest.files.contains("model/shard-00002-model-00004-of-00004.safetensors"));
}

TEST(Shards, AsyncSaveWritesTheBytesOfSave) {
  for (const Sharding& layout : {Sharding{.zero = 3, .shard = 3}, Sharding{.zero = 3, .replicate = 2, .shard = 2, .bf16 = true}}) {
    const arch::ModelConfig& model = kModels[0];
    const fs::path twin = save_as("async-twin", model, layout), directory = fresh_folder("shards-async");
    on_ranks(layout.ranks(), [&](comm::World& world, comm::Communicator&) {
      Saver saver({.world = world.all_ranks("checkpoint"), .directory = directory});
      const auto state = filled_state(model, layout, world.rank());
      saver.start(state, train_state(model));
      for (const StateTensor& tensor : state) at::Tensor(tensor.local).zero_();
      ASSERT_TRUE(saver.wait().has_value());
    });
    EXPECT_EQ(read_file((directory / step_name(7) / kManifestName).string()), read_file((twin / kManifestName).string()))
        << "sizes and sums of all files and tensors";
  }
}

// Every tensor of an export, by name.
std::map<std::string, std::string> exported(const fs::path& step, const std::string& name) {
  StepModel model(step);
  const fs::path directory = fresh_folder("shards-export-" + name) / "hf";
  const auto config = arch::hf_config_json(model.model());
  export_hf({.step = model, .directory = directory, .config = config});
  std::map<std::string, std::string> tensors;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors") tensors[entry.path().filename()] = read_file(entry.path().string());
  EXPECT_FALSE(tensors.empty());
  return tensors;
}

TEST(Shards, ExportsAreTheSameBytes) {
  for (const arch::ModelConfig& model : kModels) {
    const auto expected = exported(save_as("one", model, {}), "one");
    for (const Sharding& layout : kLayouts)
      EXPECT_TRUE(exported(save_as("many", model, layout), "many") == expected) << layout.text();
  }
}

// Parts of rows, too, are handed out front to back; what tp cut along columns is not.
TEST(Shards, RunsAreScannedWithoutPuttingThemTogether) {
  const arch::ModelConfig& model = kModels[1];
  StepModel shards(save_as("runs", model, {.zero = 3, .shard = 3}));
  for (const arch::ParamSpec& spec : arch::param_table(model)) {
    ASSERT_TRUE(shards.is_in_runs(spec.name)) << spec.name;
    std::vector<float> values;
    shards.scan(spec.name, [&](const at::Tensor& part) {
      values.insert(values.end(), part.const_data_ptr<float>(), part.const_data_ptr<float>() + part.numel());
    });
    const at::Tensor expected = whole_values(spec, StateKind::kParameter).flatten();
    ASSERT_EQ(static_cast<int64_t>(values.size()), expected.numel()) << spec.name;
    EXPECT_TRUE(std::equal(values.begin(), values.end(), expected.const_data_ptr<float>())) << spec.name;
  }
  const StepModel columns(save_as("columns", model, {.zero = 3, .shard = 2, .tp = 2}));
  EXPECT_FALSE(columns.is_in_runs("blocks.0.mlp.down.weight"));
}

TEST(Shards, AModelDirectoryIsReadIntoThem) {
  for (const arch::ModelConfig& model : kModels) {
    const fs::path directory = fresh_folder("shards-import");
    StepModel step(save_as("import-from", model, {}));
    const auto config = arch::hf_config_json(model);
    export_hf({.step = step, .directory = directory, .config = config});
    for (const Sharding& layout : kLayouts)
      for (const bool bf16 : {false, true}) {
        Sharding to = layout;
        to.bf16 = bf16;
        for (int rank = 0; rank < to.ranks(); ++rank) {
          const auto state = sharded_state(model, to, rank);
          import_hf(directory, model, state);
          for (const StateTensor& tensor : state) {
            const bool loaded = tensor.kind == StateKind::kParameter || tensor.kind == StateKind::kMaster;
            EXPECT_TRUE(at::equal(tensor.local, loaded ? values_of(arch::param_table(model), tensor)
                                                       : at::zeros_like(tensor.local)))
                << to.text() << " " << saved_name(tensor);
          }
        }
      }
  }
}

TEST(Shards, InspectAndDiffSeeWholeTensors) {
  const arch::ModelConfig& model = kModels[0];
  const fs::path a = save_as("a", model, {.zero = 3, .shard = 3}), b = save_as("b", model, {.zero = 1, .shard = 2, .tp = 2});
  const StepReport report = inspect_step(a);
  EXPECT_TRUE(report.whole());
  EXPECT_EQ(report.parameters, arch::num_parameters(model));
  EXPECT_EQ(report.model_tensors.at("F32"), std::ssize(arch::param_table(model)));
  const ModelDiff diff = diff_models(a.string(), b.string());
  EXPECT_TRUE(diff.equal_values());
  EXPECT_EQ(diff.elements, arch::num_parameters(model));
}

// A rank that holds nothing of the tensor in question stops with the same error, and each tensor is named once.
TEST(Shards, ARankWithoutAPieceStopsAsTheOthersDo) {
  const arch::ModelConfig& model = kModels[0];
  const Sharding layout{.zero = 3, .shard = 3};
  const fs::path step = save_as("mismatch", model, layout);
  on_ranks(layout.ranks(), [&](comm::World& world, comm::Communicator& all) {
    for (const std::string code : {"LS1307", "LS1308"}) {
      auto state = sharded_state(model, layout, world.rank());
      for (StateTensor& tensor : state)
        if (tensor.name == "embed.tokens.weight" && (code == "LS1307" || tensor.kind == StateKind{"exp_avg"}))
          tensor.name = "embed.other.weight";
      if (world.rank() == 2) std::erase_if(state, [](const auto& tensor) { return tensor.name == "embed.other.weight"; });
      try {
        resume({.path = step.parent_path(), .state = state, .world = all});
        ADD_FAILURE() << "loaded another model";
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.message().code, code) << "rank " << world.rank();
        const std::string text = error.what();
        EXPECT_THAT(text, HasSubstr("embed.other.weight"));
        const std::string once = code == "LS1307" ? "1 of " : "\n  optim.exp_avg.embed.other.weight";
        EXPECT_THAT(text, HasSubstr(once));
        EXPECT_EQ(text.find("embed.other.weight"), text.rfind("embed.other.weight")) << text;
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::checkpoint

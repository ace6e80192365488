#include "lockstep/checkpoint/hf_export.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/hf_names.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/diff.h"
#include "lockstep/checkpoint/directory.h"
#include "lockstep/checkpoint/hf_import.h"
#include "lockstep/checkpoint/hf_inspect.h"
#include "lockstep/checkpoint/test_hf_model.h"
#include "lockstep/checkpoint/save.h"
#include "support/run_ranks.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using arch::Family;
namespace fs = std::filesystem;

constexpr Family kFamilies[] = {Family::kGpt2,  Family::kLlama, Family::kMistral, Family::kQwen2,
                                Family::kQwen3, Family::kMixtral, Family::kQwen3Moe, Family::kDeepseekV3};

// A directory of such a model, with config.json.
fs::path model_folder(const std::string& name, const arch::ModelConfig& model, const Values& ours) {
  const fs::path folder = fresh_folder(name);
  write_tensors(folder / kHfWeights, hf_values(model, ours));
  write_file(folder / "config.json", arch::hf_config_json(model).dump());
  return folder;
}

using Change = std::function<void(std::vector<engine::StateTensor>&)>;

// The step that `ranks` ranks save, each of which has read its own pieces from the directory.
fs::path save_imported(const fs::path& directory, const arch::ModelConfig& model, int ranks, at::ScalarType dtype = at::kFloat,
                       const Change& change = {}) {
  const fs::path checkpoints = fresh_folder("run") / "checkpoints";
  testing::run_ranks(ranks, [&](comm::World& world) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    const auto communicator = world.communicator(all, "world");
    auto state = state_of(model, ranks, world.rank(), dtype);
    import_hf(directory, model, state);
    if (change) change(state);
    save({.directory = checkpoints, .state = state,
          .train_state = {.step = 5, .model = arch::model_json(model), .version = "1", .world_size = ranks},
          .world = *communicator});
  });
  return checkpoints / step_name(5);
}

HfExportResult export_to(const fs::path& step, const fs::path& directory, std::optional<at::ScalarType> dtype = {},
                         int64_t max_shard_bytes = 1 << 30) {
  StepModel model(step);
  return export_hf({.step = model, .directory = directory, .config = arch::hf_config_json(model.model()), .dtype = dtype,
                    .max_shard_bytes = max_shard_bytes});
}

// Ours that are in fp32 in the file, whatever the dtype of the others.
std::vector<std::string> always_fp32(const arch::ModelConfig& model) {
  std::vector<std::string> names;
  for (const arch::HfTensor& tensor : arch::hf_tensors(model))
    if (tensor.fp32) names.push_back(tensor.parts.front().name);
  return names;
}

TEST(HfExport, ThereAndBackGivesTheSameBytes) {
  for (const Family family : kFamilies) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const arch::ModelConfig model = tiny_model(family, dtype == at::kBFloat16);
      const fs::path directory = model_folder("there", model, random_values(model, dtype));
      for (const int ranks : {1, 3}) {
        const fs::path step = save_imported(directory, model, ranks, dtype), back = fresh_folder("back") / "model";
        const HfExportResult result = export_to(step, back);
        EXPECT_EQ(read_file(back / kHfWeights), read_file(directory / kHfWeights)) << arch::family_name(family);
        EXPECT_EQ(result.parameters, arch::num_parameters(model));
        const Json config = read_json(back / "config.json");
        EXPECT_EQ(config.contains("dtype") ? config["dtype"] : config["torch_dtype"],
                  dtype == at::kFloat ? "float32" : "bfloat16");
        EXPECT_EQ(arch::load_hf_config(back).model, arch::load_hf_config(directory).model);
        const ModelDiff diff = diff_models(step.parent_path().parent_path().string(), "hf:" + back.string());
        EXPECT_TRUE(diff.equal_values());
        std::vector<std::string> of_other_dtype;
        for (const TensorDifference& other : diff.different) of_other_dtype.push_back(other.name);
        EXPECT_EQ(of_other_dtype, dtype == at::kFloat ? std::vector<std::string>{} : always_fp32(model));
        EXPECT_EQ(diff.elements, result.parameters);
      }
    }
  }
}

// What keeps several parameters in one tensor.
TEST(HfExport, PutsTogetherWhatIsOneTensor) {
  for (const arch::ModelConfig& model : joint_models()) {
    const Values ours = random_values(model);
    const fs::path directory = fresh_folder("joint");
    write_tensors(directory / kHfWeights, hf_values(model, ours));
    for (const int ranks : {1, 3}) {
      const fs::path step = save_imported(directory, model, ranks), back = fresh_folder("back") / "model";
      StepModel saved(step);
      export_hf({.step = saved, .directory = back, .config = Json::object()});
      EXPECT_EQ(read_file(back / kHfWeights), read_file(directory / kHfWeights)) << arch::family_name(model.family);
    }
  }
}

TEST(HfExport, CutsIntoShardsWithAnIndex) {
  const arch::ModelConfig model = tiny_model(Family::kQwen3);
  const Values ours = random_values(model);
  const fs::path directory = model_folder("one", model, ours);
  const fs::path step = save_imported(directory, model, 2), back = fresh_folder("shards") / "model";
  const HfExportResult result = export_to(step, back, at::kBFloat16, 4000);
  const Json index = read_json(back / kHfIndex);
  EXPECT_EQ(index["metadata"]["total_size"], 2 * result.parameters);
  EXPECT_EQ(index["metadata"]["total_parameters"], result.parameters);
  EXPECT_EQ(index["weight_map"].size(), hf_values(model, ours).size());
  EXPECT_GT(result.files.size(), 4u);
  for (const auto& [name, bytes] : result.files) {
    EXPECT_LT(bytes, name.ends_with(".safetensors") ? 7000u : 10000u) << name;
  }
  EXPECT_FALSE(fs::exists(back / kHfWeights));
  const auto state = state_of(model, 1, 0);
  import_hf(back, model, state);
  for (const engine::StateTensor& tensor : state)
    EXPECT_TRUE(at::equal(tensor.local, ours.at(tensor.name).to(at::kBFloat16).to(at::kFloat))) << tensor.name;
}

TEST(HfExport, TakesMasterWeightsForFp32) {
  const arch::ModelConfig model = tiny_model(Family::kGpt2, true);
  const Values ours = random_values(model);
  const fs::path directory = model_folder("masters", model, ours), folder = fresh_folder("from-masters");
  const fs::path step = save_imported(directory, model, 2, at::kBFloat16, [&](auto& state) {
    for (size_t i = 0, parameters = state.size(); i < parameters; ++i) {
      engine::StateTensor master = state[i];
      master.kind = engine::StateKind::kMaster;
      master.local = at::empty(master.local.sizes());
      state.push_back(master);
    }
    import_hf(directory, model, state);
  });
  export_to(step, folder / "fp32", at::kFloat);
  EXPECT_EQ(read_file(folder / "fp32" / kHfWeights), read_file(directory / kHfWeights));
  export_to(step, folder / "saved");
  const SafetensorsFile saved(folder / "saved" / kHfWeights);
  EXPECT_TRUE(at::equal(saved.tensor("transformer.wte.weight"), ours.at("embed.tokens.weight").to(at::kBFloat16)));
  const ModelDiff diff = diff_models((folder / "fp32").string(), (folder / "saved").string());
  EXPECT_FALSE(diff.equal_values());
  EXPECT_GT(diff.different.size(), 10u);
}

TEST(HfExport, WritesAllOrNothing) {
  const arch::ModelConfig model = tiny_model(Family::kLlama);
  const fs::path directory = model_folder("whole", model, random_values(model)), folder = fresh_folder("nothing");
  const fs::path step = save_imported(directory, model, 1);
  export_to(step, folder / "model");
  EXPECT_THROW(export_to(step, folder / "model"), CheckpointError);  // exists
  fs::create_directory(folder / "empty");
  export_to(step, folder / "empty/");
  EXPECT_TRUE(fs::exists(folder / "empty" / kHfWeights));
  write_file(folder / "file.txt", "");
  EXPECT_THROW(export_to(step, folder / "file.txt" / "model"), EnvironmentError);

  const fs::path shard = step / "model/shard-00001-model-00001-of-00001.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  write_file(shard, bytes);
  EXPECT_THROW(export_to(step, folder / "damaged"), CheckpointError);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("model", "empty", "file.txt"));
}

TEST(Diff, SaysWhichValuesDifferAndHowFar) {
  const arch::ModelConfig model = tiny_model(Family::kLlama);
  Values ours = random_values(model);
  const fs::path a = model_folder("a", model, ours);
  ours["blocks.1.mlp.up.weight"].select(0, 3).fill_(0);
  ours["head.norm.weight"].select(0, 2).add_(100);
  ours["embed.tokens.weight"] = ours["embed.tokens.weight"].to(at::kHalf).to(at::kFloat);
  ours["blocks.0.mlp_norm.weight"].select(0, 1).fill_(std::numeric_limits<float>::quiet_NaN());
  const fs::path b = model_folder("b", model, ours);
  const ModelDiff diff = diff_models(a.string(), "hf:" + b.string());
  EXPECT_FALSE(diff.equal_values());
  ASSERT_THAT(diff.different, SizeIs(4));
  EXPECT_EQ(diff.different[0].name, "blocks.0.mlp_norm.weight");
  EXPECT_TRUE(std::isnan(diff.different[0].largest));
  EXPECT_EQ(diff.different[1].name, "blocks.1.mlp.up.weight");
  EXPECT_EQ(diff.different[1].elements, 24);
  EXPECT_EQ(diff.different[1].value_b, 0);
  EXPECT_EQ(diff.different[3].name, "head.norm.weight");
  EXPECT_EQ(diff.different[3].elements, 1);
  EXPECT_NEAR(diff.different[3].largest, 100, 1e-3);
  EXPECT_THAT(diff_text(diff), HasSubstr("24 of 960 values differ, at most by "));

  arch::ModelConfig tied = model;
  tied.tied = true;
  ours.erase("head.weight");
  const ModelDiff other = diff_models(b.string(), model_folder("c", tied, ours).string());
  ASSERT_THAT(other.different, SizeIs(1));
  EXPECT_THAT(diff_text(other), HasSubstr("head.weight   only in A: F32 [61, 24]"));
  EXPECT_EQ(diff_json(other)["equal"], false);
}

TEST(HfInspect, SaysWhatADirectoryHoldsAndWhatIsWrong) {
  const arch::ModelConfig model = tiny_model(Family::kQwen2);
  Values ours = random_values(model);
  const fs::path folder = model_folder("inspect", model, ours);
  const HfReport report = inspect_hf(folder, true);
  EXPECT_TRUE(report.good()) << report_text(report);
  EXPECT_EQ(report.parameters, arch::num_parameters(model));
  EXPECT_EQ(report.tensors.at("F32"), 2 * 12 + 3);
  EXPECT_THAT(report_text(report), AllOf(HasSubstr("qwen2 2 x 24"), HasSubstr("every value finite")));
  EXPECT_EQ(report_json(report)["good"], true);

  ours["blocks.1.attention.k.weight"].select(0, 3).select(0, 4).fill_(std::numeric_limits<float>::infinity());
  write_tensors(folder / kHfWeights, hf_values(model, ours));
  EXPECT_TRUE(inspect_hf(folder, false).good());
  EXPECT_THAT(inspect_hf(folder, true).problems,
              ElementsAre("model.layers.1.self_attn.k_proj.weight (our blocks.1.attention.k.weight): 1 of 384 values are not finite"));
  fs::remove(folder / "config.json");
  EXPECT_THAT(inspect_hf(folder, false).problems, SizeIs(1));
  fs::resize_file(folder / kHfWeights, 100);
  EXPECT_THAT(inspect_hf(folder, false).problems, ElementsAre(HasSubstr("in a file of 100")));
}

}  // namespace
}  // namespace lockstep::checkpoint

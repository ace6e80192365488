#include "lockstep/checkpoint/hf_import.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "lockstep/arch/hf_config.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/box_reader.h"
#include "lockstep/checkpoint/test_hf_model.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using arch::Family;
namespace fs = std::filesystem;

constexpr Family kFamilies[] = {Family::kGpt2,  Family::kLlama, Family::kMistral, Family::kQwen2,
                                Family::kQwen3, Family::kMixtral, Family::kQwen3Moe, Family::kDeepseekV3};

fs::path model_folder(const std::string& name, const Values& theirs) {
  const fs::path folder = fresh_folder(name);
  write_tensors(folder / kHfWeights, theirs);
  return folder;
}

void expect_imported(const fs::path& folder, const arch::ModelConfig& model, const Values& ours, int ranks,
                     at::ScalarType dtype = at::kFloat) {
  for (int rank = 0; rank < ranks; ++rank) {
    const auto state = state_of(model, ranks, rank, dtype);
    import_hf(folder, model, state);
    for (const engine::StateTensor& tensor : state)
      EXPECT_TRUE(at::equal(tensor.local, piece_of(ours, tensor))) << tensor.name << " on rank " << rank;
  }
}

// Expects an error and gives its message.
std::string refusal(const fs::path& folder, const arch::ModelConfig& model, const std::string& code) {
  const auto state = state_of(model, 1, 0);
  for (const engine::StateTensor& tensor : state) tensor.local.fill_(7);
  try {
    import_hf(folder, model, state);
  } catch (const Error& error) {
    EXPECT_EQ(error.message().code, code) << error.what();
    if (code != "LS1328") {
      for (const engine::StateTensor& tensor : state) EXPECT_TRUE(tensor.local.eq(7).all().item<bool>()) << tensor.name;
    }
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(BoxReader, ReadsAnyBoxAsAnyDtypeAndEitherWay) {
  const fs::path folder = fresh_folder("boxes");
  // Narrow, and so wide that its rows are read one by one.
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{37, 53}, std::vector<int64_t>{70, 5000}}) {
    for (const at::ScalarType stored : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      const at::Tensor values = at::randn(shape).to(stored);
      write_tensors(folder / "a.safetensors", {{"a", values}, {"b", values.select(0, 3)}});
      const SafetensorsFile file(folder / "a.safetensors");
      for (const at::ScalarType wanted : {at::kFloat, at::kBFloat16, at::kDouble}) {
        for (const Box& box : {Box{{0, 0}, shape}, Box{{5, 0}, {20, shape[1]}}, Box{{0, 7}, {shape[0], 9}},
                               Box{{3, 1}, {33, shape[1] - 2}}, Box{{36, 52}, {1, 1}}, Box{{4, 3}, {1, 40}}}) {
          const at::Tensor expected = values.narrow(0, box.offset[0], box.shape[0])
                                          .narrow(1, box.offset[1], box.shape[1]).to(wanted);
          const at::Tensor plain = at::zeros(box.shape, expected.options());
          const at::Tensor turned = at::zeros({box.shape[1], box.shape[0]}, expected.options());
          const at::Tensor wide = at::zeros({box.shape[0], box.shape[1] + 3}, expected.options());
          read_box(file, *file.find("a"), box, false, plain);
          read_box(file, *file.find("a"), box, true, turned);
          read_box(file, *file.find("a"), box, false, wide.narrow(1, 2, box.shape[1]));
          EXPECT_TRUE(at::equal(plain, expected)) << shape_text(box.offset) << stored << wanted;
          EXPECT_TRUE(at::equal(turned, expected.t())) << shape_text(box.offset) << stored << wanted;
          EXPECT_TRUE(at::equal(wide.narrow(1, 2, box.shape[1]), expected)) << shape_text(box.offset);
          EXPECT_EQ(wide.select(1, 0).abs().sum().item<double>() + wide.select(1, -1).abs().sum().item<double>(), 0);
        }
        const at::Tensor vector = at::zeros({30}, values.options().dtype(wanted));
        read_box(file, *file.find("b"), {{11}, {30}}, false, vector);
        EXPECT_TRUE(at::equal(vector, values.select(0, 3).narrow(0, 11, 30).to(wanted)));
      }
    }
  }
}

TEST(HfImport, EveryFamilyIntoAnyPieces) {
  for (const Family family : kFamilies) {
    for (const bool tied : {true, false}) {
      const arch::ModelConfig model = tiny_model(family, tied);
      const Values ours = random_values(model);
      const fs::path folder = model_folder("families", hf_values(model, ours));
      for (const int ranks : {1, 2, 5}) expect_imported(folder, model, ours, ranks);
    }
  }
}

TEST(HfImport, TensorsOfSeveralParametersIntoAnyPieces) {
  for (const arch::ModelConfig& model : joint_models()) {
    const Values ours = random_values(model);
    const fs::path folder = model_folder("joint", hf_values(model, ours));
    for (const int ranks : {1, 2, 5}) expect_imported(folder, model, ours, ranks);
    expect_imported(folder, model, ours, 3, at::kBFloat16);
  }
}

// Element by element, as transformers reads them.
TEST(HfPlace, IsWhereTransformersLooks) {
  const std::vector<arch::ModelConfig> models = joint_models();
  const Values neox = random_values(models[0]), oss = random_values(models[2]), bamba = random_values(models[3]);
  const Values their_neox = hf_values(models[0], neox), their_oss = hf_values(models[2], oss), their_bamba = hf_values(models[3], bamba);
  // [H, 3, K] rows.
  const at::Tensor joint = their_neox.at("gpt_neox.layers.1.attention.query_key_value.weight").view({4, 3, 8, 32});
  EXPECT_TRUE(at::equal(joint.select(1, 1).reshape({32, 32}), neox.at("blocks.1.attention.k.weight")));
  EXPECT_TRUE(at::equal(their_neox.at("gpt_neox.layers.1.attention.query_key_value.bias").view({4, 3, 8}).select(1, 2).reshape({32}),
                        neox.at("blocks.1.attention.v.bias")));
  const at::Tensor gate_up = their_oss.at("model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_TRUE(at::equal(gate_up.select(0, 2).slice(1, 1, 80, 2).t(), oss.at("blocks.0.experts.2.up.weight")));
  EXPECT_TRUE(at::equal(their_oss.at("model.layers.0.mlp.experts.gate_up_proj_bias").select(0, 1).slice(0, 0, 80, 2),
                        oss.at("blocks.0.experts.1.gate.bias")));
  EXPECT_TRUE(at::equal(their_oss.at("model.layers.0.mlp.experts.down_proj").select(0, 1).t(), oss.at("blocks.0.experts.1.down.weight")));
  EXPECT_TRUE(at::equal(their_oss.at("model.layers.0.mlp.experts.down_proj_bias").select(0, 2), oss.at("blocks.0.experts.2.down.bias")));
  EXPECT_TRUE(at::equal(their_bamba.at("model.layers.0.mamba.conv1d.weight").select(1, 0).narrow(0, 64, 8),
                        bamba.at("blocks.0.ssm.conv_b.weight")));
}

TEST(BoxReader, AStackOfMatricesIsOneOfAllTheirRows) {
  const fs::path folder = fresh_folder("stack");
  const at::Tensor values = at::randn({5, 7, 11});
  write_tensors(folder / "a.safetensors", {{"a", values}});
  const SafetensorsFile file(folder / "a.safetensors");
  for (const Box& box : {Box{{0, 0}, {35, 11}}, Box{{14, 0}, {7, 11}}, Box{{17, 3}, {2, 5}}, Box{{5, 1}, {9, 10}}}) {
    const at::Tensor part = at::zeros(box.shape);
    read_box(file, *file.find("a"), box, false, part);
    EXPECT_TRUE(at::equal(part, values.view({35, 11}).narrow(0, box.offset[0], box.shape[0]).narrow(1, box.offset[1], box.shape[1])));
  }
}

TEST(HfImport, StackedExpertsToo) {
  for (const Family family : {Family::kMixtral, Family::kQwen3Moe, Family::kDeepseekV3}) {
    const arch::ModelConfig model = tiny_model(family);
    const Values ours = random_values(model);
    const fs::path folder = model_folder("stacked", hf_values(model, ours, arch::HfForm::kStacked));
    for (const int ranks : {1, 2, 3}) expect_imported(folder, model, ours, ranks);
  }
}

TEST(HfImport, ExpertsThatAreMissingOrTooManyAreNamed) {
  const arch::ModelConfig model = tiny_model(Family::kMixtral);
  Values theirs = hf_values(model, random_values(model));
  theirs.erase("model.layers.1.block_sparse_moe.experts.5.w2.weight");
  theirs["model.layers.0.block_sparse_moe.experts.8.w1.weight"] = at::zeros({40, 24});
  EXPECT_THAT(refusal(model_folder("experts", theirs), model, "LS1324"),
              AllOf(HasSubstr("1 tensor is missing:\n    model.layers.1.block_sparse_moe.experts.5.w2.weight"),
                    HasSubstr("1 tensor is unexpected:\n    model.layers.0.block_sparse_moe.experts.8.w1.weight")));
  // Both forms in one directory: one of them is surplus.
  theirs = hf_values(model, random_values(model), arch::HfForm::kStacked);
  theirs["model.layers.0.block_sparse_moe.gate.weight"] = at::zeros({8, 24});
  EXPECT_THAT(refusal(model_folder("both", theirs), model, "LS1324"), HasSubstr("1 tensor is unexpected"));
  arch::ModelConfig more = model;
  more.experts.count = 9;
  theirs = hf_values(model, random_values(model), arch::HfForm::kStacked);
  EXPECT_THAT(refusal(model_folder("more", theirs), more, "LS1324"),
              HasSubstr("model.layers.0.mlp.experts.down_proj   file [8, 24, 40]   model [9, 24, 40]"));
}

TEST(HfImport, ConvertsToTheDtypeOfTheRun) {
  const arch::ModelConfig model = tiny_model(Family::kGpt2, true);
  for (const at::ScalarType stored : {at::kBFloat16, at::kHalf, at::kDouble, at::kFloat}) {
    const Values ours = random_values(model, stored);
    const fs::path folder = model_folder("dtypes", hf_values(model, ours));
    for (const at::ScalarType wanted : {at::kFloat, at::kBFloat16}) expect_imported(folder, model, ours, 2, wanted);
  }
}

TEST(HfImport, FillsMasterWeightsAndLeavesMoments) {
  const arch::ModelConfig model = tiny_model(Family::kLlama);
  const Values ours = random_values(model);
  auto state = state_of(model, 1, 0, at::kBFloat16);
  for (size_t i = 0, parameters = state.size(); i < parameters; ++i) {
    for (const auto kind : {engine::StateKind::kMaster, engine::StateKind{"exp_avg"}}) {
      engine::StateTensor more = state[i];
      more.kind = kind;
      more.local = at::zeros(more.global_shape);
      state.push_back(more);
    }
  }
  import_hf(model_folder("master", hf_values(model, ours)), model, state);
  for (const engine::StateTensor& tensor : state) {
    const at::Tensor expected = tensor.kind == engine::StateKind{"exp_avg"} ? at::zeros_like(tensor.local) : piece_of(ours, tensor);
    EXPECT_TRUE(at::equal(tensor.local, expected)) << tensor.name;
  }
}

TEST(HfImport, ReadsWhatOldFilesLookLike) {
  const arch::ModelConfig gpt2 = tiny_model(Family::kGpt2, true), llama = tiny_model(Family::kLlama, true);
  const Values ours = random_values(gpt2);
  Values theirs;
  for (const auto& [name, value] : hf_values(gpt2, ours)) theirs[name.substr(std::string("transformer.").size())] = value;
  theirs["h.0.attn.bias"] = at::zeros({1, 1, 16, 16}).to(at::kByte);
  theirs["h.1.attn.masked_bias"] = at::zeros({});
  expect_imported(model_folder("old", theirs), gpt2, ours, 2);

  const Values llamas = random_values(llama);
  theirs = hf_values(llama, llamas);
  theirs["model.layers.1.self_attn.rotary_emb.inv_freq"] = at::zeros({4});
  theirs["lm_head.weight"] = llamas.at("embed.tokens.weight");  // tied, and stored all the same
  const fs::path folder = model_folder("tied", theirs);
  expect_imported(folder, llama, llamas, 2);
  theirs["lm_head.weight"] = theirs["lm_head.weight"].add(1);
  write_tensors(folder / kHfWeights, theirs);
  EXPECT_THAT(refusal(folder, llama, "LS1328"), AllOf(HasSubstr("lm_head.weight differ in rows 0 to 60"),
                                                      HasSubstr("tie_word_embeddings")));
}

// As many layers behind the last as config.json says are not read; another one belongs to another model.
TEST(HfImport, LeavesOutFurtherLayersThatAreAnnounced) {
  const arch::ModelConfig model = tiny_model(Family::kDeepseekV3);
  const Values ours = random_values(model);
  Values theirs = hf_values(model, ours);
  theirs["model.layers.2.embed_tokens.weight"] = at::zeros({61, 24});
  const fs::path folder = model_folder("further", theirs);
  Json config = arch::hf_config_json(model);
  const auto announce = [&](int layers) {
    config["num_nextn_predict_layers"] = layers;
    write_file(folder / arch::kHfConfigName, config.dump());
  };
  announce(1);
  expect_imported(folder, model, ours, 2);
  announce(0);
  EXPECT_THAT(refusal(folder, model, "LS1324"), HasSubstr("1 tensor is unexpected:\n    model.layers.2.embed_tokens.weight"));
  announce(1);
  theirs["model.layers.3.embed_tokens.weight"] = at::zeros({61, 24});
  write_tensors(folder / kHfWeights, theirs);
  EXPECT_THAT(refusal(folder, model, "LS1324"), HasSubstr("1 tensor is unexpected:\n    model.layers.3.embed_tokens.weight"));
}

TEST(HfImport, NamesAllThatDoesNotFit) {
  const arch::ModelConfig model = tiny_model(Family::kQwen2);
  Values theirs = hf_values(model, random_values(model));
  for (int i = 0; i < 2; ++i) {
    for (const char* projection : {"q", "k", "v"}) {
      for (const char* kind : {"weight", "bias"})
        theirs.erase("model.layers." + std::to_string(i) + ".self_attn." + projection + "_proj." + kind);
    }
  }
  for (const char* name : {"gate", "up"}) {
    for (int i = 0; i < 2; ++i) theirs["model.layers." + std::to_string(i) + ".mlp." + name + "_proj.weight"] = at::zeros({24, 40});
  }
  theirs["model.norm.weight"] = at::zeros({24}).to(at::kInt);
  theirs["model.embed_tokens.weight"] = at::zeros({60, 24});
  theirs["model.layers.0.mlp.down_proj.lora_A"] = at::zeros({1});
  const std::string message = refusal(model_folder("unfit", theirs), model, "LS1324");
  EXPECT_THAT(message, AllOf(HasSubstr("12 tensors are missing:"), HasSubstr("model.layers.0.self_attn.k_proj.bias\n"),
                             HasSubstr("model.layers.1.self_attn.v_proj.weight\n"), HasSubstr("6 tensors are of another"),
                             HasSubstr("model.embed_tokens.weight   file [60, 24]   model [61, 24]"),
                             HasSubstr("(first 5 of 6 shown)")));
  EXPECT_THAT(message, HasSubstr("1 tensor is unexpected:\n    model.layers.0.mlp.down_proj.lora_A"));
  theirs = hf_values(model, random_values(model));
  theirs["model.norm.weight"] = at::zeros({24}).to(at::kInt);
  EXPECT_THAT(refusal(model_folder("dtype", theirs), model, "LS1324"), HasSubstr("model.norm.weight   file I32   model F32"));
}

// Three shards and their index; `change` spoils the weight map, if it likes.
fs::path sharded(const Values& theirs, const std::function<void(const fs::path&, Json&)>& change = {}) {
  const fs::path folder = fresh_folder("sharded");
  std::array<Values, 3> shards;
  Json map = Json::object();
  size_t i = 0;
  for (const auto& [name, value] : theirs) {
    map[name] = "model-0000" + std::to_string(i % 3 + 1) + "-of-00003.safetensors";
    shards[i++ % 3][name] = value;
  }
  for (size_t shard = 0; shard < 3; ++shard)
    write_tensors(folder / ("model-0000" + std::to_string(shard + 1) + "-of-00003.safetensors"), shards[shard]);
  if (change) change(folder, map);
  write_file(folder / kHfIndex, Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  return folder;
}

TEST(HfImport, ShardsAndTheirIndex) {
  const arch::ModelConfig model = tiny_model(Family::kQwen3);
  const Values ours = random_values(model);
  const Values theirs = hf_values(model, ours);
  expect_imported(sharded(theirs), model, ours, 3);

  const std::string name = "model.norm.weight";
  for (const char* file : {"../a.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "a\nb.safetensors", "a b.safetensors",
                           "model.bin", "weights\xc3\xa9.safetensors"})
    EXPECT_THAT(refusal(sharded(theirs, [&](auto&, Json& map) { map[name] = file; }), model, "LS1322"),
                HasSubstr("no safetensors file of this directory")) << file;
  EXPECT_THAT(refusal(sharded(theirs, [&](auto&, Json& map) { map[name] = 3; }), model, "LS1322"), HasSubstr(name));
  EXPECT_THAT(refusal(sharded(theirs, [&](auto&, Json& map) { map = Json::array(); }), model, "LS1322"), HasSubstr("weight_map"));
  EXPECT_THAT(refusal(sharded(theirs, [&](auto&, Json& map) { map = Json::object(); }), model, "LS1322"), HasSubstr("no tensor"));
  EXPECT_THAT(refusal(sharded(theirs, [&](auto&, Json& map) { map.erase(name); }), model, "LS1323"),
              HasSubstr("the index does not list " + name));
  EXPECT_THAT(refusal(sharded(theirs, [&](auto&, Json& map) { map["b"] = map[name]; }), model, "LS1323"),
              HasSubstr("the files lack b (in "));
  EXPECT_THAT(refusal(sharded(theirs, [&](auto& folder, Json&) { fs::remove(folder / "model-00002-of-00003.safetensors"); }), model, "LS1323"),
              HasSubstr("no file model-00002-of-00003.safetensors"));
  EXPECT_THAT(refusal(sharded(theirs, [&](auto& folder, Json&) {
                        fs::rename(folder / "model-00002-of-00003.safetensors", folder / "elsewhere");
                        fs::create_symlink("elsewhere", folder / "model-00002-of-00003.safetensors");
                      }), model, "LS1204"), HasSubstr("cp -rL"));
  EXPECT_THAT(refusal(sharded(theirs, [&](auto& folder, Json&) {
                        const fs::path file = folder / "model-00002-of-00003.safetensors";
                        fs::resize_file(file, fs::file_size(file) - 1);
                      }), model, "LS1290"), HasSubstr("the tensors end at byte"));
}

TEST(HfImport, RefusesWhatIsNoModelDirectory) {
  const arch::ModelConfig model = tiny_model(Family::kLlama);
  const fs::path folder = fresh_folder("none");
  EXPECT_THAT(refusal(folder, model, "LS1320"), HasSubstr("neither model.safetensors nor"));
  EXPECT_THAT(refusal(folder / "absent", model, "LS1320"), HasSubstr("No such file"));
  write_file(folder / "pytorch_model.bin", "PK");
  EXPECT_THAT(refusal(folder, model, "LS1321"), AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("save_pretrained"), Not(HasSubstr("neither"))));
  write_file(folder / kHfIndex, "{");
  refusal(folder, model, "LS1205");
}

}  // namespace
}  // namespace lockstep::checkpoint

#include "lockstep/arch/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/arch/layer_description.h"
#include "lockstep/arch/test_hf_config.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "support/folders.h"

namespace lockstep::arch {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::model_of;
using testing::read;
using testing::refusal;
using testing::with;
using testing::without;

// As published; keys without a meaning for the shape are left out, but for some that must survive.
Json llama31() {
  return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256})");
}
Json qwen25() {
  return Json::parse(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
    "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})");
}
Json qwen3() {
  return Json::parse(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})");
}
Json mistral() {
  return Json::parse(R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32768})");
}
Json gpt2() {
  return Json::parse(R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "summary_type": "cls_index", "vocab_size": 50257,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}})");
}

TEST(HfConfig, PublishedModels) {
  EXPECT_EQ(model_of(llama31()),
            (ModelConfig{.family = Family::kLlama, .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8,
                         .head_size = 128, .ffn = 14336, .vocab_size = 128256, .max_seq_len = 131072, .tied = false,
                         .norm_eps = 1e-5, .rope_theta = 500000,
                         .rope_scaling = {.kind = RopeScaling::Kind::kLlama3, .factor = 8, .low_freq_factor = 1,
                                          .high_freq_factor = 4, .original_max_position_embeddings = 8192}}));
  EXPECT_EQ(model_of(qwen25()),
            (ModelConfig{.family = Family::kQwen2, .layers = 24, .hidden = 896, .heads = 14, .kv_heads = 2,
                         .head_size = 64, .ffn = 4864, .vocab_size = 151936, .max_seq_len = 32768, .tied = true,
                         .norm_eps = 1e-6, .rope_theta = 1e6, .qkv_bias = true, .out_bias = false}));
  EXPECT_EQ(model_of(qwen3()),
            (ModelConfig{.family = Family::kQwen3, .layers = 28, .hidden = 1024, .heads = 16, .kv_heads = 8,
                         .head_size = 128, .ffn = 3072, .vocab_size = 151936, .max_seq_len = 40960, .tied = true,
                         .norm_eps = 1e-6, .rope_theta = 1e6, .qkv_bias = false, .qk_norm = true}));
  EXPECT_EQ(model_of(mistral()),
            (ModelConfig{.family = Family::kMistral, .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8,
                         .head_size = 128, .ffn = 14336, .vocab_size = 32768, .max_seq_len = 32768, .tied = false,
                         .norm_eps = 1e-5, .rope_theta = 1e6}));
  EXPECT_EQ(model_of(gpt2()), resolve_model({.preset = "gpt2-124m"}));
}

TEST(HfConfig, TokensDtypeAndNotes) {
  const HfConfig llama = read(llama31());
  EXPECT_EQ(llama.dtype, "bfloat16");
  EXPECT_THAT(llama.eos_token_ids, ElementsAre(128001));
  EXPECT_THAT(llama.notes, IsEmpty());
  EXPECT_THAT(read(llama31(), {{"eos_token_id", {128001, 128009}}}).eos_token_ids, ElementsAre(128001, 128009));
  EXPECT_THAT(read(with(llama31(), "eos_token_id", {3, 4})).eos_token_ids, ElementsAre(3, 4));
  EXPECT_THAT(read(with(llama31(), "eos_token_id", nullptr)).eos_token_ids, IsEmpty());
  EXPECT_EQ(read(with(without(llama31(), "torch_dtype"), "dtype", "float16")).dtype, "float16");
  EXPECT_THAT(read(gpt2()).notes, ::testing::Each(HasSubstr("pdrop = 0.1 is not taken")));
  EXPECT_EQ(read(gpt2()).notes.size(), 3);
  EXPECT_THAT(read(with(llama31(), "pretraining_tp", 2)).notes, ElementsAre(HasSubstr("parallel.tp splits them for real")));
}

TEST(HfConfig, MissingAndNullKeysMeanWhatTransformersTakes) {
  EXPECT_EQ(model_of(with(gpt2(), "n_inner", nullptr)).ffn, 4 * 768);
  EXPECT_EQ(model_of(with(gpt2(), "n_inner", 100)).ffn, 100);
  EXPECT_FALSE(model_of(with(gpt2(), "tie_word_embeddings", false)).tied);
  EXPECT_FALSE(model_of(without(qwen3(), "tie_word_embeddings")).tied);
  EXPECT_EQ(model_of(with(qwen25(), "num_key_value_heads", nullptr)).kv_heads, 14);
  EXPECT_EQ(model_of(without(llama31(), "num_key_value_heads")).kv_heads, 32);
  EXPECT_EQ(model_of(without(mistral(), "num_key_value_heads")).kv_heads, 8);
  EXPECT_EQ(model_of(with(mistral(), "head_dim", 160)).head_size, 160);  // Nemo: 32 x 160 of 5120
  EXPECT_EQ(model_of(with(llama31(), "head_dim", nullptr)).head_size, 128);
  EXPECT_EQ(model_of(without(qwen3(), "head_dim")).head_size, 128);
  EXPECT_EQ(model_of(without(without(llama31(), "rope_theta"), "rope_scaling")).rope_theta, 10000);
  EXPECT_EQ(model_of(without(llama31(), "rms_norm_eps")).norm_eps, 1e-6);
}

TEST(HfConfig, FlagsOfBiases) {
  const ModelConfig llama = model_of(with(with(llama31(), "attention_bias", true), "mlp_bias", true));
  EXPECT_TRUE(llama.qkv_bias && llama.out_bias && llama.mlp_bias);
  const ModelConfig qwen = model_of(with(qwen3(), "attention_bias", true));
  EXPECT_TRUE(qwen.qkv_bias && qwen.out_bias && !qwen.mlp_bias);
}

TEST(HfConfig, BothSpellingsOfRotaryParameters) {
  Json v5 = without(without(llama31(), "rope_scaling"), "rope_theta");
  v5["rope_parameters"] = llama31()["rope_scaling"];
  v5["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(model_of(v5), model_of(llama31()));
  v5["rope_parameters"] = {{"rope_theta", 7.0}, {"rope_type", "default"}};
  EXPECT_EQ(model_of(v5).rope_theta, 7);
  EXPECT_EQ(model_of(v5).rope_scaling, RopeScaling{});

  const RopeScaling linear{.kind = RopeScaling::Kind::kLinear, .factor = 4};
  EXPECT_EQ(model_of(with(llama31(), "rope_scaling", {{"type", "linear"}, {"factor", 4}})).rope_scaling, linear);
  Json unnamed = llama31();
  unnamed["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_EQ(model_of(unnamed).rope_scaling.original_max_position_embeddings, 131072);
}

TEST(HfConfig, AWindowOfAllLayersMayBeShorterThanTheSequence) {
  for (const Json& config : {without(mistral(), "sliding_window"), with(mistral(), "sliding_window", 4096)}) {
    EXPECT_EQ(model_of(config).sliding_window, 4096);
    EXPECT_EQ(model_of(config).max_seq_len, 32768);
    EXPECT_THAT(read(config).notes, IsEmpty());
  }
}

// Of each layer, 0 where it has none.
std::vector<int64_t> windows(const ModelConfig& model) {
  std::vector<int64_t> windows;
  for (int i = 1; i <= model.layers; ++i) windows.push_back(model.window_of(block_branches(model, i).front()));
  return windows;
}

TEST(HfConfig, AWindowOfSomeLayersIsTheirs) {
  Json qwen = with(with(with(qwen25(), "use_sliding_window", true), "sliding_window", 1000), "num_hidden_layers", 6);
  EXPECT_EQ(model_of(qwen).sliding_window, 0) << "max_window_layers = 24: no layer slides";
  EXPECT_THAT(model_of(qwen).blocks, IsEmpty());
  const ModelConfig last = model_of(with(qwen, "max_window_layers", 4));
  EXPECT_THAT(windows(last), ElementsAre(0, 0, 0, 0, 1000, 1000));
  EXPECT_EQ(last.max_seq_len, 32768);
  EXPECT_THAT(read(with(qwen, "max_window_layers", 4)).notes, IsEmpty());
  EXPECT_EQ(model_of(with(qwen, "max_window_layers", 0)).sliding_window, 1000) << "all slide";
  EXPECT_THAT(model_of(with(qwen, "max_window_layers", 0)).blocks, IsEmpty());
  Json layers = Json::array();
  for (int i = 0; i < 6; ++i) layers.push_back(i % 2 ? "full_attention" : "sliding_attention");
  const ModelConfig turns = model_of(with(qwen, "layer_types", layers));
  EXPECT_THAT(windows(turns), ElementsAre(1000, 0, 1000, 0, 1000, 0));
  EXPECT_EQ(turns.blocks.size(), 2) << "in turn";
  for (const ModelConfig& model : {last, turns}) EXPECT_EQ(model_of(hf_config_json(model)), model) << hf_config_json(model).dump(1);
  EXPECT_THAT(refusal(with(with(qwen, "use_sliding_window", false), "layer_types", layers)).what, HasSubstr("use_sliding_window is not true"));
  EXPECT_THAT(refusal(with(qwen, "layer_types", {"full_attention"})).what, HasSubstr("list of 6 names"));
  layers[3] = "chunked_attention";
  EXPECT_EQ(refusal(with(qwen, "layer_types", layers)).code, "LS1118");
}

TEST(HfConfig, NamesAllThatIsWrong) {
  Json config = without(without(llama31(), "hidden_size"), "vocab_size");
  config["num_hidden_layers"] = "32";
  config["rms_norm_eps"] = 0;
  config["tie_word_embeddings"] = 1;
  config["eos_token_id"] = {"a"};
  config["bos_token_id"] = -1;
  config["rope_theta"] = -1;
  const Message message = refusal(config);
  EXPECT_EQ(message.code, "LS1117");
  for (const char* part : {"hidden_size is missing", "vocab_size is missing", "num_hidden_layers = \"32\": a whole number",
                           "rms_norm_eps = 0: a number above 0", "tie_word_embeddings = 1: true or false",
                           "eos_token_id = [\"a\"]", "bos_token_id = -1", "rope_theta = -1"})
    EXPECT_THAT(message.what, HasSubstr(part));
}

TEST(HfConfig, MalformedValues) {
  const std::vector<std::pair<const char*, Json>> cases = {
      {"num_attention_heads", 0},    {"num_attention_heads", -1},    {"num_attention_heads", 1.5},
      {"hidden_size", Json::parse("18446744073709551615")},          {"hidden_size", Json::array({4096})},
      {"hidden_size", true},         {"num_hidden_layers", 1 << 20}, {"vocab_size", 1e300},
      {"num_key_value_heads", 5},    {"num_attention_heads", 33},    {"head_dim", 7},
      {"rope_theta", "big"},         {"rope_scaling", "llama3"},     {"rope_scaling", {{"rope_type", "llama3"}}},
      {"model_type", nullptr},       {"model_type", 3},              {"rope_scaling", {{"rope_type", "linear"}}},
      {"pretraining_tp", 0},         {"eos_token_id", -1},           {"torch_dtype", 16},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 0}}},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}};
  for (const auto& [key, value] : cases) {
    const Message message = refusal(with(llama31(), key, value));
    EXPECT_EQ(message.code, "LS1117") << key << " " << value;
    EXPECT_FALSE(message.what.empty());
  }
  EXPECT_THAT(refusal(with(llama31(), "num_key_value_heads", 5)).what, HasSubstr("heads(32) % kv_heads(5) = 2"));
  EXPECT_THAT(refusal(with(llama31(), "num_attention_heads", 33)).what,
              HasSubstr("hidden_size(4096) % num_attention_heads(33) = 4"));
  EXPECT_EQ(refusal(Json::array()).code, "LS1117");
}

TEST(HfConfig, NamesAllThatIsNotBuilt) {
  Json config = with(with(llama31(), "hidden_act", "gelu"), "quantization_config", {{"quant_method", "fp8"}});
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  config["architectures"] = {"LlamaForSequenceClassification"};
  const Message message = refusal(config);
  EXPECT_EQ(message.code, "LS1118");
  EXPECT_THAT(message.what, AllOf(HasSubstr("hidden_act = \"gelu\""), HasSubstr("quantization_config"),
                                  HasSubstr("rope_scaling.rope_type = \"dynamic\""),
                                  HasSubstr("LlamaForSequenceClassification")));
  for (const char* type : {"longrope", "proportional", "mrope"})
    EXPECT_THAT(refusal(with(llama31(), "rope_scaling", {{"type", type}, {"factor", 2}})).what, HasSubstr(type));
  EXPECT_THAT(refusal(with(llama31(), "model_type", "deepseek_v2")).what,
              HasSubstr("deepseek_v2\": of gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, deepseek_v3"));
  EXPECT_EQ(refusal(with(gpt2(), "activation_function", "relu")).code, "LS1118");
  EXPECT_EQ(model_of(with(gpt2(), "activation_function", "gelu_pytorch_tanh")), model_of(gpt2()));
  EXPECT_EQ(refusal(with(gpt2(), "scale_attn_by_inverse_layer_idx", true)).code, "LS1118");
  EXPECT_EQ(refusal(with(gpt2(), "scale_attn_weights", false)).code, "LS1118");
  EXPECT_EQ(refusal(with(llama31(), "partial_rotary_factor", 0.5)).code, "LS1118");
}

TEST(HfConfig, WrittenBackOnlyWhatChangedIsSet) {
  Json some = with(with(qwen25(), "use_sliding_window", true), "max_window_layers", 20);
  for (const Json& config : {llama31(), qwen25(), qwen3(), mistral(), gpt2(), without(mistral(), "sliding_window"), some}) {
    EXPECT_EQ(hf_config_json(model_of(config), &config), config);
    ModelConfig shorter = model_of(config);
    if (!shorter.traits().learned_positions) shorter.max_seq_len = 128;
    shorter.dropout = 0.3;
    EXPECT_EQ(hf_config_json(shorter, &config), config) << "limits of a run stay with the run";
  }
  const Json original = llama31();
  ModelConfig changed = model_of(original);
  changed.vocab_size = 128260;
  changed.tied = true;
  EXPECT_EQ(hf_config_json(changed, &original), with(with(llama31(), "vocab_size", 128260), "tie_word_embeddings", true));
  changed.rope_theta = 1e6;
  changed.max_seq_len = 1 << 20;
  EXPECT_EQ(model_of(hf_config_json(changed, &original)), changed);
  EXPECT_THROW(hf_config_json(model_of(qwen3()), &original), ConfigError);
}

TEST(HfConfig, AllOfAModelWithoutAnOriginal) {
  for (const Json& config : {llama31(), qwen25(), qwen3(), mistral(), gpt2(), with(mistral(), "sliding_window", 100)}) {
    const ModelConfig model = model_of(config);
    const Json json = hf_config_json(model);
    EXPECT_EQ(model_of(json), model) << json.dump(1);
    EXPECT_EQ(json["architectures"], config["architectures"]);
  }
  ModelConfig odd = model_of(llama31());
  odd.qkv_bias = true;
  EXPECT_THROW(hf_config_json(odd), ConfigError);
  odd = model_of(gpt2());
  odd.head_size = 32;
  EXPECT_THROW(hf_config_json(odd), ConfigError);
}

TEST(HfConfig, DtypeGoesUnderTheKeyThatIsThere) {
  Json older = llama31(), newer = with(without(llama31(), "torch_dtype"), "dtype", "bfloat16"), none = gpt2();
  for (Json* json : {&older, &newer, &none}) set_hf_dtype(*json, "float32");
  EXPECT_EQ(older, with(llama31(), "torch_dtype", "float32"));
  EXPECT_EQ(newer, with(without(llama31(), "torch_dtype"), "dtype", "float32"));
  EXPECT_EQ(none["torch_dtype"], "float32");
}

class HfFolder : public ::testing::Test {
 protected:
  void write(const char* name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  config::ModelSection section() const { return {.from = cat("hf:", path_.string())}; }
  template <typename Call>
  static std::string code_of(Call call) {
    try {
      call();
    } catch (const Error& error) {
      return error.message().code;
    }
    return "accepted";
  }
  const support::ScopedFolder folder_{"hf-config"};
  const fs::path path_ = folder_.path();
};

TEST_F(HfFolder, IsReadAsAWhole) {
  EXPECT_EQ(code_of([&] { load_hf_config(path_); }), "LS1115");
  write("config.json", llama31().dump());
  write("generation_config.json", R"({"eos_token_id": [1, 2]})");
  EXPECT_THAT(load_hf_config(path_).eos_token_ids, ElementsAre(1, 2));
  write("config.json", R"({"model_type": "llama", "model_type": "gpt2"})");
  EXPECT_EQ(code_of([&] { load_hf_config(path_); }), "LS1205");
  write("config.json", std::string(100, '[') + std::string(100, ']'));
  EXPECT_EQ(code_of([&] { load_hf_config(path_); }), "LS1205");
  write("config.json", "{");
  EXPECT_EQ(code_of([&] { load_hf_config(path_); }), "LS1205");
  fs::resize_file(path_ / "config.json", 17 << 20);
  EXPECT_EQ(code_of([&] { load_hf_config(path_); }), "LS1117");
}

TEST_F(HfFolder, IsTheModelOfASection) {
  write("config.json", without(mistral(), "sliding_window").dump());
  EXPECT_EQ(resolve_model(section()), load_hf_config(path_).model);
  config::ModelSection changed = section();
  changed.dropout = 0.25;
  changed.max_seq_len = 512;
  EXPECT_EQ(resolve_model(changed).dropout, 0.25);
  EXPECT_EQ(resolve_model(changed).max_seq_len, 512);
  changed.max_seq_len = 5000;  // above the window
  EXPECT_EQ(resolve_model(changed).max_seq_len, 5000);
  config::ModelSection sized = section();
  sized.layers = 3;
  sized.preset = "gpt2-test";
  try {
    resolve_model(sized);
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().code, "LS1116");
    EXPECT_THAT(error.message().what, HasSubstr("model.preset, model.layers beside model.from"));
  }
  write("config.json", gpt2().dump());
  changed.max_seq_len = 512;
  EXPECT_EQ(code_of([&] { resolve_model(changed); }), "LS1116") << "learned positions";
}

TEST_F(HfFolder, TheDirectoryIsNamedWithOrWithoutItsPrefixOrByAFileInIt) {
  write("config.json", gpt2().dump());
  for (const std::string& from : {cat("hf:", path_.string()), path_.string(), cat(path_.string(), "/"), (path_ / "config.json").string()})
    EXPECT_EQ(resolve_model({.from = from}), model_of(gpt2())) << from;
  EXPECT_EQ(code_of([&] { resolve_model({.from = "hf:" + (path_ / "none").string()}); }), "LS1115");
  EXPECT_EQ(code_of([&] { resolve_model({.from = (path_ / "none").string()}); }), "LS1115");
  EXPECT_EQ(code_of([&] { resolve_model({.from = "hf:"}); }), "LS1203");
}

}  // namespace
}  // namespace lockstep::arch

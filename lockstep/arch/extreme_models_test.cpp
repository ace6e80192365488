// Sizes from files - config.json of a model directory, the model in a checkpoint - are anybody's: each gives a model whose
// table and costs can be made, or a typed refusal.
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/arch/cost.h"
#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep::arch {
namespace {

const std::vector<Json> kExtremes = {0, 1, -1, 2, 3, 1 << 16, (1 << 16) + 1, (int64_t{1} << 31) - 1, int64_t{1} << 31, int64_t{1} << 32,
                                     int64_t{1} << 62, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(),
                                     std::numeric_limits<uint64_t>::max(), 0.5, 1e300, -1e300, 5e-324, nullptr, "8", true,
                                     Json::array(), Json::object()};

Json llama() {
  return Json::parse(R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "eos_token_id": 2, "bos_token_id": 1, "pretraining_tp": 1, "sliding_window": 32,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 32}})");
}

Json gpt2() {
  return Json::parse(R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 128, "vocab_size": 100,
    "n_positions": 64, "layer_norm_epsilon": 1e-5})");
}

// What is computed of a model before anything is allocated.
void use(const ModelConfig& model) {
  EXPECT_TRUE(size_problems(model).empty());
  const CostInput input{.batch = 1, .seq_len = std::min<int64_t>(model.max_seq_len, 4096), .element_size = 4};
  const int head = static_cast<int>(model.layers) + 1;
  for (const int layer : {0, 1, head}) EXPECT_GE(layer_cost(model, layer_spec(model, layer), input).output, 0);
  for (const ParamSpec& spec : param_table(model, {}, {0, 1, head})) EXPECT_GT(spec.numel(), 0) << spec.name;
  EXPECT_GT(model_flops_per_token(model, input.seq_len), 0);
}

int made = 0, refused = 0;

template <typename Parse>
void expect_made_or_refused(const Json& json, const Parse& parse) {
  SCOPED_TRACE(json.dump(-1, ' ', true));
  try {
    use(parse(json));
    ++made;
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().code.empty());
    ++refused;
  }
}

// Each key with each value, and each two keys with the same one.
template <typename Parse>
void each(const Json& sound, const Parse& parse) {
  made = refused = 0;
  for (const auto& [first, old] : sound.items())
    for (const auto& [second, other] : sound.items())
      for (const Json& value : kExtremes) {
        Json changed = sound;
        changed[first] = value;
        changed[second] = value;
        expect_made_or_refused(changed, parse);
      }
  EXPECT_GT(made, 10);
  EXPECT_GT(refused, 100);
}

TEST(ExtremeModels, OfAConfigJson) {
  const auto parse = [](const Json& json) { return parse_hf_config(json, Json(), "config.json").model; };
  for (const Json& sound : {llama(), gpt2()}) each(sound, parse);
  Json scaled = llama();
  const Json scaling = scaled["rope_scaling"];
  for (const auto& [key, old] : scaling.items())
    for (const Json& value : kExtremes) {
      scaled["rope_scaling"] = scaling;
      scaled["rope_scaling"][key] = value;
      expect_made_or_refused(scaled, parse);
    }
}

TEST(ExtremeModels, OfACheckpoint) {
  const auto parse = [](const Json& json) { return parse_model_json(json, "manifest.json"); };
  const ModelConfig plain = parse_hf_config(llama(), Json(), "config.json").model;
  EXPECT_EQ(parse_model_json(model_json(plain), "manifest.json"), plain);
  each(model_json(plain), parse);
}

TEST(ExtremeModels, OfExpertsInACheckpoint) {
  const auto parse = [](const Json& json) { return parse_model_json(json, "manifest.json"); };
  const Json sound = model_json(resolve_model({.preset = "mixtral-test"}));
  made = refused = 0;
  for (const auto& [key, old] : sound.at("experts").items())
    for (const Json& value : kExtremes) {
      Json changed = sound;
      changed["experts"][key] = value;
      expect_made_or_refused(changed, parse);
    }
  EXPECT_GT(made, 5);
  EXPECT_GT(refused, 50);
  for (const Json& value : kExtremes) {
    Json changed = sound;
    changed["experts"] = value;
    expect_made_or_refused(changed, parse);
  }
}

TEST(ExtremeModels, OfLatentsInACheckpoint) {
  const auto parse = [](const Json& json) { return parse_model_json(json, "manifest.json"); };
  const Json sound = model_json(resolve_model({.preset = "deepseek-test"}));
  made = refused = 0;
  for (const auto& [key, old] : sound.at("latent").items())
    for (const Json& value : kExtremes) {
      Json changed = sound;
      changed["latent"][key] = value;
      expect_made_or_refused(changed, parse);
    }
  EXPECT_GT(made, 5);
  EXPECT_GT(refused, 50);
  for (const Json& value : kExtremes) {
    Json changed = sound;
    changed["latent"] = value;
    expect_made_or_refused(changed, parse);
  }
}

TEST(ExtremeModels, OfStateSpacesInACheckpoint) {
  const auto parse = [](const Json& json) { return parse_model_json(json, "manifest.json"); };
  for (const char* preset : {"mamba2-test", "hybrid-experts-test"}) {
    const Json sound = model_json(resolve_model({.preset = preset}));
    made = refused = 0;
    for (const auto& [first, old] : sound.at("state_space").items())
      for (const auto& [second, other] : sound.at("state_space").items())
        for (const Json& value : kExtremes) {
          Json changed = sound;
          changed["state_space"][first] = changed["state_space"][second] = value;
          expect_made_or_refused(changed, parse);
        }
    EXPECT_GT(made, 10);
    EXPECT_GT(refused, 100);
  }
}

TEST(ExtremeModels, OfTheOptionsOfACheckpoint) {
  const auto parse = [](const Json& json) { return parse_model_json(json, "manifest.json"); };
  const Json sound = model_json(resolve_model({.preset = "hybrid-test"}));
  made = refused = 0;
  for (const char* key : {"/activation", "/rotary_size", "/rope_local_theta", "/attention_scale", "/attention_sinks", "/embedding_scale",
                          "/blocks/1/0/window", "/blocks/1/0/rotation", "/blocks/0/0/window", "/blocks", "/blocks/0", "/state_space"})
    for (const Json& value : kExtremes) {
      Json changed = sound;
      changed[Json::json_pointer(key)] = value;
      expect_made_or_refused(changed, parse);
    }
  EXPECT_GT(made, 10);
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace lockstep::arch

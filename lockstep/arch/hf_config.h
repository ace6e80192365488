// The config.json of a Hugging Face model directory as a ModelConfig, and back. Both spellings of the rotary parameters
// are read (transformers 4: rope_theta and rope_scaling; 5: rope_parameters); missing keys mean what transformers 5.23
// takes for them, except sizes, which must be there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/base/json.h"

namespace lockstep::arch {

struct HfConfig {
  ModelConfig model{};                   // dropout 0, which files say of training; `blocks` in their shortest form
  std::vector<int64_t> eos_token_ids{};  // of generation_config.json, or else of config.json; may be empty
  std::string dtype{};                   // "bfloat16": of the weights; empty where config.json does not say
  int64_t further_layers = 0;            // behind the last, in files of weights alone: num_nextn_predict_layers, where missing 1
  std::vector<std::string> notes{};      // a sentence for each key that is accepted and has no effect here
};

inline constexpr const char* kHfConfigName = "config.json";

// DataError LS1115 where `dir` holds no config.json; LS1117 with all keys that are missing, of another type or
// contradict each other; LS1118 with all that ask for what is not built (other architectures, activations, kinds of
// rope scaling, quantised weights). LS1205 for what is not JSON.
// `name`: a run keeps the config.json that it came from under another one.
HfConfig load_hf_config(const std::filesystem::path& dir, std::string_view name = kHfConfigName);
// The same from the content; `generation` is generation_config.json or null. `origin` stands for the file in messages.
HfConfig parse_hf_config(const Json& config, const Json& generation, std::string_view origin);
// As read_json, but a bare Infinity, which Python writes, is {"__float__": "Infinity"}, as transformers 5 writes it. DataError LS1117
// above 16 MiB.
Json read_hf_json(const std::filesystem::path& path);

// A config.json that transformers loads. With `original`, the one the model came from, its keys stay and only what the
// model has otherwise is set, and that there are no further layers; a max_seq_len below the original's was a limit of the run and is not. ConfigError LS1123
// for a model that no class of transformers computes. The dtype of the weights is the caller's to set (set_hf_dtype).
Json hf_config_json(const ModelConfig& model, const Json* original = nullptr);
// Under the key that is there, `dtype` or `torch_dtype`; the older where neither is.
void set_hf_dtype(Json& config, std::string_view dtype);

}  // namespace lockstep::arch

// What is known of a config.json while it is read, and its parts: for hf_config*.cpp.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/hf_config_families.h"
#include "lockstep/arch/hf_keys.h"

namespace lockstep::arch {

struct HfReading {
  HfReading(const Json& config, std::string_view from) : origin(from), keys(config, "", problems) {}  // `config` outlives it
  HfReading(const HfReading&) = delete;
  HfReading& operator=(const HfReading&) = delete;

  ModelConfig& model() { return read.model; }
  bool model_is(Family of) const { return read.model.family == of; }
  void problem(std::string text) { problems.push_back(std::move(text)); }
  void unsupported(std::string text) { not_built.push_back(std::move(text)); }
  void note(std::string text) { read.notes.push_back(std::move(text)); }
  // DataError LS1117 with all problems, or LS1118 with all that is not built.
  [[noreturn]] void refuse() const;

  std::string origin;
  HfConfig read{};
  std::vector<std::string> problems{}, not_built{};
  HfKeys keys;
  const HfFamily* family = nullptr;
  std::vector<std::string> kinds{};  // of layers, of a family of HfBlocks::kOne
};

// Each of them needs what those above it have read.
void read_state_space(HfReading& reading);  // of families that have one: hf_config_state_space.cpp
void read_rope(HfReading& reading);         // of families that turn: hf_config_rope.cpp
void read_experts(HfReading& reading);      // of families that have them: hf_config_experts.cpp
void read_layers(HfReading& reading);       // windows, rotation, branches of each layer: hf_config_layers.cpp
// Of a family of HfBlocks::kOne, which has no other number of layers: "linear_attention", "full_attention" or "mlp" each.
std::vector<std::string> listed_branches(HfReading& reading);

// The branches of all layers, one list each, with the window of every attention said.
std::vector<BlockSpec> layer_blocks(const ModelConfig& model);
// The shortest form of that in the model: `sliding_window` where all attention has one window, lists in turn, none for usual blocks.
void set_layer_blocks(ModelConfig& model, std::vector<BlockSpec> layers);
// All layers' in turn, "full_attention" or "sliding_attention".
std::vector<std::string> attention_kinds(const std::vector<BlockSpec>& layers);

}  // namespace lockstep::arch

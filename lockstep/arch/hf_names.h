// The tensors of a Hugging Face model directory and our parameters: one table for both directions. A family is rows of
// it: their name of a module, ours, how its weight is stored. Modules of one name of theirs are stacked along
// the outputs in the order of the table (gpt2 keeps q, k and v in one tensor).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/model_config.h"

namespace lockstep::arch {

// One of our parameters within a tensor of theirs, seen as [out, ...]: stacked experts as all their rows, a filter [C, 1, W] as [C, W].
struct HfPart {
  std::string name;            // "blocks.3.attention.k.weight"
  std::vector<int64_t> shape;  // ours, global; linear weights [out, in]
  int64_t row = 0;             // the first that is this parameter
  // Where its rows do not lie side by side: so many do, and the next ones begin `step` behind these. 0: all do.
  int64_t run = 0;
  int64_t step = 0;
  int64_t matrix = 0;  // of a stack of transposed matrices, and of a stack of vectors: which; `row` counts within it
  bool operator==(const HfPart&) const = default;
};

struct HfTensor {
  std::string name;            // "transformer.h.3.attn.c_attn.weight"
  std::vector<int64_t> shape;  // as stored; of stacked experts [E, out, in], their biases [E, out]
  bool transposed = false;     // stored [in, out]: gpt2's Conv1D; a stack of such, [E, in, out]: gpt-oss
  std::vector<HfPart> parts;
  bool fp32 = false;           // in whatever dtype the others are: what shifts the choice of experts
  bool operator==(const HfTensor&) const = default;
};

// Tensors of experts: each its own, as published and as transformers writes them; or all experts of a layer in one, gate above up
// (what transformers 5 has in memory, and writes where save_original_format=False asks for it). Without experts both are the same.
enum class HfForm { kUsual, kStacked };

// Every tensor of the model, under the name and, without experts, in the order in which transformers writes it. Each row of the parameter table is a part of exactly one.
// ConfigError LS1123 where a parameter has no place in the family.
std::vector<HfTensor> hf_tensors(const ModelConfig& model, HfForm form = HfForm::kUsual);
bool is_stacked_hf_name(std::string_view name);  // of the form kStacked alone

// `name` with the prefix of its family ("transformer.", "model."), which files of a model without a head leave out.
std::string canonical_hf_name(Family family, std::string_view name);

// Buffers that old files carry and nobody reads: gpt2's causal masks, rotary frequencies. Takes canonical names.
bool is_ignored_hf_name(Family family, std::string_view canonical_name);

// Of the `further` layers behind the model's last (HfConfig::further_layers), which predict further tokens (DeepSeek-AI 2024,
// section 2.2) and are not built. Takes canonical names.
bool is_further_hf_layer(const ModelConfig& model, int64_t further, std::string_view canonical_name);

// The head's weight; absent, or a copy of the embedding, where the two are tied.
std::string_view hf_head_name(Family family);

}  // namespace lockstep::arch

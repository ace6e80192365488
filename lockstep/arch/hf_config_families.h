// What config.json calls things, by family: for hf_config.cpp, which reads, hf_config_write.cpp and hf_names.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/arch/model_config.h"

namespace lockstep::arch {

enum class HfNames { kGpt2, kLlama };  // of tensors

struct HfFamily {
  std::string_view language_model;  // in `architectures`
  std::string_view bare_model;      // the same without a head
  // Keys.
  const char* hidden = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* ffn = "intermediate_size";
  const char* positions = "max_position_embeddings";
  const char* norm_eps = "rms_norm_eps";
  // What a missing key means.
  int64_t default_positions = 0;
  int64_t default_kv_heads = 0;   // 0 = heads
  int64_t default_head_size = 0;  // 0 = hidden / heads
  int64_t default_window = 0;     // 0 = none
  double default_norm_eps = 1e-6;
  bool default_tied = false;
  // Which flags have a key; where there is none the family's own value holds.
  bool attention_bias_key = false;  // of q, k, v and out together
  bool mlp_bias_key = false;
  bool window_by_layer = false;  // use_sliding_window, max_window_layers, layer_types
  HfNames names = HfNames::kLlama;
};

// In the order of the enumeration.
inline constexpr HfFamily kHfFamilies[] = {
    {.language_model = "GPT2LMHeadModel", .bare_model = "GPT2Model", .hidden = "n_embd", .layers = "n_layer", .heads = "n_head",
     .ffn = "n_inner", .positions = "n_positions", .norm_eps = "layer_norm_epsilon", .default_positions = 1024,
     .default_norm_eps = 1e-5, .default_tied = true, .names = HfNames::kGpt2},
    {.language_model = "LlamaForCausalLM", .bare_model = "LlamaModel", .default_positions = 2048, .attention_bias_key = true,
     .mlp_bias_key = true},
    {.language_model = "MistralForCausalLM", .bare_model = "MistralModel", .default_positions = 131072, .default_kv_heads = 8,
     .default_window = 4096},
    {.language_model = "Qwen2ForCausalLM", .bare_model = "Qwen2Model", .default_positions = 32768, .default_kv_heads = 32,
     .default_window = 4096, .window_by_layer = true},
    {.language_model = "Qwen3ForCausalLM", .bare_model = "Qwen3Model", .default_positions = 32768, .default_kv_heads = 32,
     .default_head_size = 128, .default_window = 4096, .attention_bias_key = true, .window_by_layer = true},
};
constexpr const HfFamily& hf_family(Family family) { return kHfFamilies[static_cast<size_t>(family)]; }

}  // namespace lockstep::arch

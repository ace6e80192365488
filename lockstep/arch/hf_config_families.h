// What config.json calls things, by family: for hf_config.cpp, which reads, hf_config_write.cpp and hf_names.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/arch/model_config.h"

namespace lockstep::arch {

// Of a family with latent attention: layers behind the last, which are not built.
inline constexpr const char* kFurtherLayersKey = "num_nextn_predict_layers";

enum class HfNames { kGpt2, kLlama, kMixtral, kQwen3Moe, kDeepseekV3 };  // of tensors

// What the layers do with sliding_window.
enum class HfWindow {
  kEvery,    // all take it
  kFlagged,  // all take it where use_sliding_window is true
  kByLayer,  // use_sliding_window, max_window_layers, layer_types say which do
};

// Keys of a family with experts. num_experts_per_tok says how many of them a token has, in all families.
struct HfExperts {
  const char* count = nullptr;        // null: the family has none
  const char* other_count = nullptr;  // transformers 5 writes this one; where both are there they must agree
  const char* ffn = nullptr;          // of an expert; null: the family has no dense layers, and `HfFamily::ffn` is the experts'
  bool dense_layers = false;          // mlp_only_layers, decoder_sparse_step
  bool norm_key = false;              // norm_topk_prob: false is the router softmax, true softmax_after_topk; no key: the latter
  bool sigmoid = false;               // the router is sigmoid with a correction bias: n_group, topk_group, routed_scaling_factor,
                                      // n_shared_experts, first_k_dense_replace
};

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
  std::optional<int64_t> default_window{};  // of sliding_window, 0 = none; nothing where the family has no such key
  double default_norm_eps = 1e-6;
  double default_rope_theta = 10000;
  bool default_tied = false;
  // Which flags have a key; where there is none the family's own value holds.
  bool attention_bias_key = false;  // of q, k, v and out together
  bool mlp_bias_key = false;
  HfWindow window = HfWindow::kEvery;
  HfExperts experts{};
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
     .default_window = 4096, .window = HfWindow::kByLayer},
    {.language_model = "Qwen3ForCausalLM", .bare_model = "Qwen3Model", .default_positions = 32768, .default_kv_heads = 32,
     .default_head_size = 128, .default_window = 4096, .attention_bias_key = true, .window = HfWindow::kByLayer},
    {.language_model = "MixtralForCausalLM", .bare_model = "MixtralModel", .default_positions = 131072, .default_kv_heads = 8,
     .default_window = 0, .default_norm_eps = 1e-5, .default_rope_theta = 1e6, .experts = {.count = "num_local_experts"},
     .names = HfNames::kMixtral},
    {.language_model = "Qwen3MoeForCausalLM", .bare_model = "Qwen3MoeModel", .default_positions = 32768, .default_kv_heads = 4,
     .default_window = 4096, .attention_bias_key = true, .window = HfWindow::kFlagged,
     .experts = {.count = "num_experts", .other_count = "num_local_experts", .ffn = "moe_intermediate_size", .dense_layers = true,
                 .norm_key = true},
     .names = HfNames::kQwen3Moe},
    {.language_model = "DeepseekV3ForCausalLM", .bare_model = "DeepseekV3Model", .default_positions = 4096,
     .experts = {.count = "n_routed_experts", .other_count = "num_local_experts", .ffn = "moe_intermediate_size", .sigmoid = true},
     .names = HfNames::kDeepseekV3},
};
constexpr const HfFamily& hf_family(Family family) { return kHfFamilies[static_cast<size_t>(family)]; }

}  // namespace lockstep::arch

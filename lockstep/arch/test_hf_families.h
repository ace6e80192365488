// config.json of families with windows, state spaces and their like, as published; keys without a meaning for the model are left out.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/base/json.h"

namespace lockstep::arch::testing {

inline Json pythia() {
  return Json::parse(R"({"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
    "model_type": "gpt_neox", "num_attention_heads": 12, "num_hidden_layers": 12, "rotary_emb_base": 10000, "rotary_pct": 0.25,
    "tie_word_embeddings": false, "torch_dtype": "float16", "use_cache": true, "use_parallel_residual": true, "vocab_size": 50304})");
}
inline Json phi3() {
  return Json::parse(R"({"architectures": ["Phi3ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "embd_pdrop": 0.0,
    "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32064})");
}
inline Json olmo2() {
  return Json::parse(R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "eos_token_id": 100257,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 500000, "tie_word_embeddings": false, "torch_dtype": "float32", "vocab_size": 100352})");
}
inline Json olmo3() {
  Json json = Json::parse(R"({"architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "eos_token_id": 100257,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 65536, "model_type": "olmo3",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
    "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
                     "original_max_position_embeddings": 8192, "rope_type": "yarn"},
    "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 100278})");
  for (int i = 0; i < 32; ++i) json["layer_types"].push_back(i % 4 == 3 ? "full_attention" : "sliding_attention");
  return json;
}
inline Json smollm3() {
  Json json = Json::parse(R"({"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": null,
    "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536,
    "max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4, "num_attention_heads": 16,
    "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null, "torch_dtype": "bfloat16", "use_sliding_window": false,
    "vocab_size": 128256})");
  for (int i = 0; i < 36; ++i) {
    json["no_rope_layers"].push_back(i % 4 == 3 ? 0 : 1);
    json["layer_types"].push_back("full_attention");
  }
  return json;
}
inline Json gemma3() {
  return Json::parse(R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
    "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
    "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16", "vocab_size": 262144})");
}
// With the number that transformers 5 writes; published files have a bare Infinity.
inline Json mamba2() {
  return Json::parse(R"({"architectures": ["Mamba2ForCausalLM"], "bos_token_id": 0, "chunk_size": 256, "conv_kernel": 4, "eos_token_id": 0,
    "expand": 2, "head_dim": 64, "hidden_act": "silu", "hidden_size": 768, "layer_norm_epsilon": 1e-05, "model_type": "mamba2",
    "n_groups": 1, "num_heads": 24, "num_hidden_layers": 24, "residual_in_fp32": true, "rms_norm": true, "state_size": 128,
    "tie_word_embeddings": true, "time_step_floor": 0.0001, "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_max": 0.1,
    "time_step_min": 0.001, "torch_dtype": "float32", "use_bias": false, "use_conv_bias": true, "vocab_size": 50288})");
}
inline Json bamba() {
  return Json::parse(R"({"architectures": ["BambaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "attn_layer_indices": [9, 18, 27],
    "attn_rotary_emb": 64, "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64,
    "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128, "mamba_proj_bias": false,
    "max_position_embeddings": 262144, "mlp_bias": false, "model_type": "bamba", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_logits_to_keep": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256})");
}
inline Json nemotron_h() {
  return Json::parse(R"({"architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "attention_head_dim": 128,
    "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2, "head_dim": 128, "hidden_dropout": 0.0,
    "hidden_size": 4096, "hybrid_override_pattern": "M-M-M*-M-", "intermediate_size": 21504, "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 128, "mamba_proj_bias": false, "max_position_embeddings": 8192,
    "mlp_bias": false, "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8, "num_attention_heads": 32,
    "num_hidden_layers": 9, "num_key_value_heads": 8, "residual_in_fp32": false, "rms_norm_eps": 1e-05, "sliding_window": null,
    "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001,
    "torch_dtype": "bfloat16", "use_bias": false, "use_conv_bias": true, "vocab_size": 131072})");
}
inline Json gpt_oss() {
  Json json = Json::parse(R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
    "pad_token_id": 199999, "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
                     "truncate": false},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
    "vocab_size": 201088})");
  for (int i = 0; i < 24; ++i) json["layer_types"].push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  return json;
}

inline Json falcon_h1() {
  return Json::parse(R"({"architectures": ["FalconH1ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375, "bos_token_id": 1, "embedding_multiplier": 5.656854249492381,
    "eos_token_id": 11, "head_dim": 64, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 2048,
    "key_multiplier": 0.390625, "lm_head_multiplier": 0.0390625, "mamba_chunk_size": 128, "mamba_conv_bias": true, "mamba_d_conv": 4,
    "mamba_d_head": 64, "mamba_d_ssm": 1536, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 24,
    "mamba_norm_before_gate": false, "mamba_proj_bias": false, "mamba_rms_norm": false, "max_position_embeddings": 16384,
    "mlp_bias": false, "mlp_expansion_factor": 8, "mlp_multipliers": [0.8838834764831844, 0.5859375], "model_type": "falcon_h1",
    "num_attention_heads": 8, "num_hidden_layers": 36, "num_key_value_heads": 2, "num_logits_to_keep": 1, "projectors_bias": false,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738], "ssm_out_multiplier": 0.23570226039551587,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32784})");
}

inline std::vector<Json> new_families() {
  return {pythia(), phi3(), olmo2(), olmo3(), smollm3(), gemma3(), mamba2(), bamba(), nemotron_h(), gpt_oss(), falcon_h1()};
}

// Small enough to make all of its tensors: sizes of the same kind as the published one's.
inline Json small(Json json) {
  const std::vector<std::pair<const char*, int>> sizes = {
      {"hidden_size", 32},       {"intermediate_size", 40}, {"num_attention_heads", 4}, {"vocab_size", 61},      {"max_position_embeddings", 64},
      {"num_key_value_heads", 2}, {"num_hidden_layers", 4},  {"num_local_experts", 4},   {"num_experts_per_tok", 2}, {"sliding_window", 8},
      {"num_heads", 8},          {"mamba_n_heads", 8},      {"mamba_num_heads", 8},     {"mamba_d_head", 8},    {"mamba_head_dim", 8},
      {"state_size", 4},         {"mamba_d_state", 4},      {"ssm_state_size", 4},      {"n_groups", 2},        {"mamba_n_groups", 2},
      {"chunk_size", 8},         {"mamba_chunk_size", 8},   {"mamba_d_ssm", 64}};
  for (const auto& [key, value] : sizes)
    if (json.contains(key) && !json[key].is_null()) json[key] = value;
  if (json.contains("head_dim")) json["head_dim"] = 8;
  if (json.contains("attn_layer_indices")) json["attn_layer_indices"] = {2};
  for (const char* list : {"layer_types", "no_rope_layers"})
    if (json.contains(list)) json[list].erase(json[list].begin() + 4, json[list].end());
  if (json.contains("hybrid_override_pattern")) json["hybrid_override_pattern"] = "M-*M";
  return json;
}

}  // namespace lockstep::arch::testing

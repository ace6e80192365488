// What config.json calls things, by family: for hf_config*.cpp and hf_names.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/arch/model_config.h"

namespace lockstep::arch {

// Of a family with latent attention: layers behind the last, which are not built.
inline constexpr const char* kFurtherLayersKey = "num_nextn_predict_layers";

enum class HfNames { kGpt2, kLlama, kMixtral, kQwen3Moe, kDeepseekV3, kGptNeox, kPhi3, kOlmo2, kGemma3, kMamba2, kBamba, kNemotronH, kGptOss };  // of tensors

// Which layers a window is of.
enum class HfWindow {
  kEvery,       // all, where there is one
  kFlagged,     // all, where use_sliding_window is true
  kByLayer,     // use_sliding_window, and then layer_types or those from max_window_layers on
  kByKind,      // layer_types, or all but every so-many-th: HfFamily::full_every
  kWithoutRope  // use_sliding_window, and then layer_types or those without rotation, which no_rope_layers says
};

// Where rotary parameters are.
enum class HfRope {
  kUsual,   // rope_theta and rope_scaling, or rope_parameters
  kPct,     // the same, but rotary_emb_base and rotary_pct
  kByKind,  // rope_parameters.full_attention, .sliding_attention; or rope_theta and rope_scaling, which are of full attention
  kNone     // nothing turns
};

// Of what the blocks are.
enum class HfBlocks {
  kUsual,      // attention and MLP behind their norms
  kParallel,   // the same, beside each other where use_parallel_residual says so
  kBehind,     // norms behind both
  kBoth,       // norms before and behind both
  kListed,     // attention in the layers of attn_layer_indices, a state space in the others; then an MLP
  kOne,        // one of layers_block_type
  kStateSpace,  // a state space alone
  kBeside       // a state space and attention beside each other behind one norm; then an MLP
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
  bool clamped = false;               // swiglu_limit, swiglu_alpha; router and experts have biases
};

// Keys of a family with state spaces.
struct HfStateSpace {
  const char* heads = nullptr;  // null: the family has none
  const char* head_size = nullptr;
  const char* groups = nullptr;
  const char* state = nullptr;
  const char* convolution = nullptr;
  const char* chunk = nullptr;
  const char* convolution_bias = nullptr;
  const char* projection_bias = nullptr;
  const char* activation = nullptr;  // of the convolution
  const char* expand = nullptr;  // heads x head_size / hidden
  const char* inner = nullptr;   // heads x head_size; null with a null `expand`: there is no such key, and time_step_min is the least step
  const char* norm = nullptr;    // whether there is one; null: there is
  int64_t default_groups = 8;
  int64_t default_chunk = 256;
};

struct HfFamily {
  std::string_view language_model;  // in `architectures`
  std::string_view bare_model;      // the same without a head
  // Keys. Null: there is none.
  const char* hidden = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* ffn = "intermediate_size";
  const char* positions = "max_position_embeddings";
  const char* norm_eps = "rms_norm_eps";
  const char* activation = "hidden_act";
  // What a missing key means.
  int64_t default_positions = 0;
  int64_t default_kv_heads = 0;   // 0 = heads
  int64_t default_head_size = 0;  // 0 = hidden / heads
  std::optional<int64_t> default_window{};  // of sliding_window, 0 = none; nothing where the family has no such key
  double default_norm_eps = 1e-6;
  double default_rope_theta = 10000;
  double default_local_theta = 0;     // HfRope::kByKind: of layers with a window
  double default_rotary_factor = 1;   // of a head, the part that turns
  std::string_view default_activation = "silu";
  bool default_tied = false;
  bool default_attention_bias = false;
  // Which flags have a key; where there is none the family's own value holds.
  bool attention_bias_key = false;  // of q, k, v and out together
  bool mlp_bias_key = false;
  bool partial_rotation = false;  // a part of each head may turn
  bool plain_heads = false;  // no keys of key/value heads and of their size
  bool writes_rope_parameters = false;  // in the spelling of transformers 5, where no file says otherwise
  int full_every = 0;        // HfWindow::kByKind
  HfWindow window = HfWindow::kEvery;
  HfRope rope = HfRope::kUsual;
  HfBlocks blocks = HfBlocks::kUsual;
  HfExperts experts{};
  HfStateSpace state_space{};
  bool multipliers = false;  // muP: key_multiplier, ssm_multipliers and the like
  HfNames names = HfNames::kLlama;
};

// In the order of the enumeration.
inline constexpr HfFamily kHfFamilies[] = {
    {.language_model = "GPT2LMHeadModel", .bare_model = "GPT2Model", .hidden = "n_embd", .layers = "n_layer", .heads = "n_head",
     .ffn = "n_inner", .positions = "n_positions", .norm_eps = "layer_norm_epsilon", .activation = "activation_function",
     .default_positions = 1024, .default_norm_eps = 1e-5, .default_activation = "gelu_new", .default_tied = true, .plain_heads = true,
     .rope = HfRope::kNone, .names = HfNames::kGpt2},
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
    {.language_model = "GPTNeoXForCausalLM", .bare_model = "GPTNeoXModel", .norm_eps = "layer_norm_eps", .default_positions = 2048,
     .default_norm_eps = 1e-5, .default_rotary_factor = 0.25, .default_activation = "gelu", .default_attention_bias = true,
     .attention_bias_key = true, .partial_rotation = true, .plain_heads = true, .writes_rope_parameters = true, .rope = HfRope::kPct,
     .blocks = HfBlocks::kParallel, .names = HfNames::kGptNeox},
    {.language_model = "Phi3ForCausalLM", .bare_model = "Phi3Model", .default_positions = 4096, .default_window = 0,
     .default_norm_eps = 1e-5, .partial_rotation = true, .writes_rope_parameters = true, .names = HfNames::kPhi3},
    {.language_model = "Olmo2ForCausalLM", .bare_model = "Olmo2Model", .default_positions = 2048, .default_norm_eps = 1e-5,
     .attention_bias_key = true, .writes_rope_parameters = true, .blocks = HfBlocks::kBehind, .names = HfNames::kOlmo2},
    {.language_model = "Olmo3ForCausalLM", .bare_model = "Olmo3Model", .default_positions = 2048, .default_window = 4096,
     .default_norm_eps = 1e-5, .default_rope_theta = 5e5, .default_local_theta = 5e5, .attention_bias_key = true,
     .writes_rope_parameters = true, .full_every = 4, .window = HfWindow::kByKind, .rope = HfRope::kByKind,
     .blocks = HfBlocks::kBehind, .names = HfNames::kOlmo2},
    {.language_model = "SmolLM3ForCausalLM", .bare_model = "SmolLM3Model", .default_positions = 32768, .default_kv_heads = 4,
     .default_window = 0, .default_rope_theta = 2e6, .default_tied = true, .attention_bias_key = true, .mlp_bias_key = true,
     .writes_rope_parameters = true, .window = HfWindow::kWithoutRope},
    {.language_model = "Gemma3ForCausalLM", .bare_model = "Gemma3TextModel", .activation = "hidden_activation",
     .default_positions = 131072, .default_kv_heads = 4, .default_head_size = 256, .default_window = 4096, .default_rope_theta = 1e6,
     .default_local_theta = 1e4, .default_activation = "gelu_pytorch_tanh", .default_tied = true, .attention_bias_key = true,
     .writes_rope_parameters = true, .full_every = 6, .window = HfWindow::kByKind, .rope = HfRope::kByKind,
     .blocks = HfBlocks::kBoth, .names = HfNames::kGemma3},
    {.language_model = "Mamba2ForCausalLM", .bare_model = "Mamba2Model", .heads = nullptr, .ffn = nullptr, .positions = nullptr,
     .norm_eps = "layer_norm_epsilon", .activation = nullptr, .default_norm_eps = 1e-5, .rope = HfRope::kNone,
     .blocks = HfBlocks::kStateSpace,
     .state_space = {.heads = "num_heads", .head_size = "head_dim", .groups = "n_groups", .state = "state_size",
                     .convolution = "conv_kernel", .chunk = "chunk_size", .convolution_bias = "use_conv_bias",
                     .projection_bias = "use_bias", .activation = "hidden_act", .expand = "expand"},
     .names = HfNames::kMamba2},
    {.language_model = "BambaForCausalLM", .bare_model = "BambaModel", .default_positions = 262144, .default_kv_heads = 8,
     .default_norm_eps = 1e-5, .default_rotary_factor = 0.5, .attention_bias_key = true, .mlp_bias_key = true,
     .partial_rotation = true, .writes_rope_parameters = true, .blocks = HfBlocks::kListed,
     .state_space = {.heads = "mamba_n_heads", .head_size = "mamba_d_head", .groups = "mamba_n_groups", .state = "mamba_d_state",
                     .convolution = "mamba_d_conv", .chunk = "mamba_chunk_size", .convolution_bias = "mamba_conv_bias",
                     .projection_bias = "mamba_proj_bias", .activation = "hidden_act", .expand = "mamba_expand", .default_groups = 1},
     .names = HfNames::kBamba},
    {.language_model = "NemotronHForCausalLM", .bare_model = "NemotronHModel", .layers = nullptr, .norm_eps = "layer_norm_epsilon",
     .activation = "mlp_hidden_act", .default_positions = 4096, .default_kv_heads = 8, .default_head_size = 128,
     .default_norm_eps = 1e-5, .default_activation = "relu2", .mlp_bias_key = true, .rope = HfRope::kNone, .blocks = HfBlocks::kOne,
     .state_space = {.heads = "mamba_num_heads", .head_size = "mamba_head_dim", .groups = "n_groups", .state = "ssm_state_size",
                     .convolution = "conv_kernel", .chunk = "chunk_size", .convolution_bias = "use_conv_bias",
                     .projection_bias = "use_bias", .activation = "mamba_hidden_act", .default_chunk = 128},
     .names = HfNames::kNemotronH},
    {.language_model = "GptOssForCausalLM", .bare_model = "GptOssModel", .default_positions = 131072, .default_kv_heads = 8,
     .default_head_size = 64, .default_window = 128, .default_norm_eps = 1e-5, .default_rope_theta = 1.5e5,
     .default_attention_bias = true, .attention_bias_key = true, .writes_rope_parameters = true, .full_every = 2,
     .window = HfWindow::kByKind, .experts = {.count = "num_local_experts", .clamped = true}, .names = HfNames::kGptOss},
    {.language_model = "FalconH1ForCausalLM", .bare_model = "FalconH1Model", .default_positions = 8192, .default_kv_heads = 8,
     .default_norm_eps = 1e-5, .attention_bias_key = true, .mlp_bias_key = true, .writes_rope_parameters = true, .blocks = HfBlocks::kBeside,
     .state_space = {.heads = "mamba_n_heads", .head_size = "mamba_d_head", .groups = "mamba_n_groups", .state = "mamba_d_state",
                     .convolution = "mamba_d_conv", .chunk = "mamba_chunk_size", .convolution_bias = "mamba_conv_bias",
                     .projection_bias = "mamba_proj_bias", .activation = "hidden_act", .inner = "mamba_d_ssm", .norm = "mamba_rms_norm",
                     .default_groups = 1},
     .multipliers = true, .names = HfNames::kBamba},
};
constexpr const HfFamily& hf_family(Family family) { return kHfFamilies[static_cast<size_t>(family)]; }

// Of a state space whose steps have no upper limit though they have a lower one; as large as fp32 can be.
inline constexpr double kNoStepLimit = 3.4028234663852886e38;

}  // namespace lockstep::arch

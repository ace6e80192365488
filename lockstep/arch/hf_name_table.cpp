#include "lockstep/arch/hf_name_table.h"

#include <array>

#include "lockstep/arch/hf_config_families.h"

namespace lockstep::arch {
namespace {

constexpr HfStored kTransposed = HfStored::kTransposed, kStacked = HfStored::kStacked, kAlone = HfStored::kAlone, kBare = HfStored::kBare,
                 kBareBias = HfStored::kBareBias, kByHeads = HfStored::kByHeads, kFilter = HfStored::kFilter;

constexpr LayerKind kEmbedding = LayerKind::kEmbedding, kBlock = LayerKind::kBlock, kHead = LayerKind::kHead;

// Order: as transformers lists the tensors of its model, which decides how an export is cut into files.
constexpr std::array kGpt2 = std::to_array<HfRow>({
    {kEmbedding, "wte", "tokens"},
    {kEmbedding, "wpe", "positions"},
    {kBlock, "ln_1", "attention_norm"},
    {kBlock, "attn.c_attn", "attention.q", kTransposed},
    {kBlock, "attn.c_attn", "attention.k", kTransposed},
    {kBlock, "attn.c_attn", "attention.v", kTransposed},
    {kBlock, "attn.c_proj", "attention.out", kTransposed},
    {kBlock, "ln_2", "mlp_norm"},
    {kBlock, "mlp.c_fc", "mlp.up", kTransposed},
    {kBlock, "mlp.c_proj", "mlp.down", kTransposed},
    {kHead, "ln_f", "norm"},
    {kHead, "lm_head", ""},
});

// Of a block, between the embedding and what an MLP or experts have in it.
constexpr std::array kAttention = std::to_array<HfRow>({
    {kEmbedding, "embed_tokens", "tokens"},
    {kBlock, "self_attn.q_proj", "attention.q"},
    {kBlock, "self_attn.k_proj", "attention.k"},
    {kBlock, "self_attn.v_proj", "attention.v"},
    {kBlock, "self_attn.o_proj", "attention.out"},
    {kBlock, "self_attn.q_norm", "attention.q_norm"},
    {kBlock, "self_attn.k_norm", "attention.k_norm"},
});
constexpr std::array kGatedMlp = std::to_array<HfRow>({
    {kBlock, "mlp.gate_proj", "mlp.gate"},
    {kBlock, "mlp.up_proj", "mlp.up"},
    {kBlock, "mlp.down_proj", "mlp.down"},
});
constexpr std::array kMixtralExperts = std::to_array<HfRow>({
    {kBlock, "block_sparse_moe.gate", "experts.router", kAlone},
    {kBlock, "block_sparse_moe.experts.#.w1", "experts.#.gate"},
    {kBlock, "block_sparse_moe.experts.#.w2", "experts.#.down"},
    {kBlock, "block_sparse_moe.experts.#.w3", "experts.#.up"},
});
constexpr std::array kQwen3MoeExperts = std::to_array<HfRow>({
    {kBlock, "mlp.gate", "experts.router", kAlone},
    {kBlock, "mlp.experts.#.gate_proj", "experts.#.gate"},
    {kBlock, "mlp.experts.#.up_proj", "experts.#.up"},
    {kBlock, "mlp.experts.#.down_proj", "experts.#.down"},
});
constexpr std::array kLatentRows = std::to_array<HfRow>({
    {kEmbedding, "embed_tokens", "tokens"},
    {kBlock, "self_attn.q_a_proj", "attention.q_a"},
    {kBlock, "self_attn.q_a_layernorm", "attention.q_a_norm"},
    {kBlock, "self_attn.q_b_proj", "attention.q_b"},
    {kBlock, "self_attn.kv_a_proj_with_mqa", "attention.kv_a"},
    {kBlock, "self_attn.kv_a_layernorm", "attention.kv_a_norm"},
    {kBlock, "self_attn.kv_b_proj", "attention.kv_b"},
    {kBlock, "self_attn.o_proj", "attention.out"},
});
// Beside the tensors of qwen3_moe.
constexpr std::array kDeepseekExperts = std::to_array<HfRow>({
    {kBlock, "mlp.gate.e_score_correction_bias", "experts.router", kBareBias},
    {kBlock, "mlp.shared_experts.gate_proj", "experts.shared.gate"},
    {kBlock, "mlp.shared_experts.up_proj", "experts.shared.up"},
    {kBlock, "mlp.shared_experts.down_proj", "experts.shared.down"},
});
// Of all, where transformers 5 was asked for the tensors as its classes have them (save_original_format=False).
constexpr std::array kStackedExperts = std::to_array<HfRow>({
    {kBlock, "mlp.gate", "experts.router", kAlone},
    {kBlock, "mlp.experts.gate_up_proj", "experts.#.gate", kStacked},
    {kBlock, "mlp.experts.gate_up_proj", "experts.#.up", kStacked},
    {kBlock, "mlp.experts.down_proj", "experts.#.down", kStacked},
});
constexpr std::array kNorms = std::to_array<HfRow>({
    {kBlock, "input_layernorm", "attention_norm"},
    {kBlock, "post_attention_layernorm", "mlp_norm"},
    {kBlock, "post_attention_layernorm", "experts_norm"},
    {kHead, "norm", "norm"},
    {kHead, "lm_head", ""},
});

constexpr std::array kGptNeox = std::to_array<HfRow>({
    {kEmbedding, "embed_in", "tokens"},
    {kBlock, "input_layernorm", "attention_norm"},
    {kBlock, "post_attention_layernorm", "mlp_norm"},
    {kBlock, "attention.query_key_value", "attention.q", kByHeads},
    {kBlock, "attention.query_key_value", "attention.k", kByHeads},
    {kBlock, "attention.query_key_value", "attention.v", kByHeads},
    {kBlock, "attention.dense", "attention.out"},
    {kBlock, "mlp.dense_h_to_4h", "mlp.up"},
    {kBlock, "mlp.dense_4h_to_h", "mlp.down"},
    {kHead, "final_layer_norm", "norm"},
    {kHead, "embed_out", ""},
});
constexpr std::array kPhi3 = std::to_array<HfRow>({
    {kEmbedding, "embed_tokens", "tokens"},
    {kBlock, "self_attn.o_proj", "attention.out"},
    {kBlock, "self_attn.qkv_proj", "attention.q"},
    {kBlock, "self_attn.qkv_proj", "attention.k"},
    {kBlock, "self_attn.qkv_proj", "attention.v"},
    {kBlock, "mlp.gate_up_proj", "mlp.gate"},
    {kBlock, "mlp.gate_up_proj", "mlp.up"},
    {kBlock, "mlp.down_proj", "mlp.down"},
});
constexpr std::array kNormsBehind = std::to_array<HfRow>({
    {kBlock, "post_attention_layernorm", "attention_post_norm"},
    {kBlock, "post_feedforward_layernorm", "mlp_post_norm"},
    {kHead, "norm", "norm"},
    {kHead, "lm_head", ""},
});
constexpr std::array kFourNorms = std::to_array<HfRow>({
    {kBlock, "input_layernorm", "attention_norm"},
    {kBlock, "post_attention_layernorm", "attention_post_norm"},
    {kBlock, "pre_feedforward_layernorm", "mlp_norm"},
    {kBlock, "post_feedforward_layernorm", "mlp_post_norm"},
    {kHead, "norm", "norm"},
    {kHead, "lm_head", ""},
});
// Of a state space, whatever the module is called.
constexpr std::array kStateSpaceRows = std::to_array<HfRow>({
    {kBlock, "@.dt_bias", "ssm.dt_bias", kBare},
    {kBlock, "@.A_log", "ssm.a_log", kBare},
    {kBlock, "@.D", "ssm.d", kBare},
    {kBlock, "@.conv1d", "ssm.conv_x", kFilter},
    {kBlock, "@.conv1d", "ssm.conv_b", kFilter},
    {kBlock, "@.conv1d", "ssm.conv_c", kFilter},
    {kBlock, "@.in_proj", "ssm.z"},
    {kBlock, "@.in_proj", "ssm.x"},
    {kBlock, "@.in_proj", "ssm.b"},
    {kBlock, "@.in_proj", "ssm.c"},
    {kBlock, "@.in_proj", "ssm.dt"},
    {kBlock, "@.norm", "ssm.norm"},
    {kBlock, "@.out_proj", "ssm.out"},
});
// Mamba-2 and Nemotron-H: a block is one branch.
constexpr std::array kOneBranch = std::to_array<HfRow>({
    {kEmbedding, "embeddings", "tokens"},
    {kBlock, "norm", "ssm_norm"},
    {kBlock, "norm", "attention_norm"},
    {kBlock, "norm", "mlp_norm"},
});
constexpr std::array kOtherBranches = std::to_array<HfRow>({
    {kBlock, "mixer.q_proj", "attention.q"},
    {kBlock, "mixer.k_proj", "attention.k"},
    {kBlock, "mixer.v_proj", "attention.v"},
    {kBlock, "mixer.o_proj", "attention.out"},
    {kBlock, "mixer.up_proj", "mlp.up"},
    {kBlock, "mixer.down_proj", "mlp.down"},
    {kHead, "norm_f", "norm"},
    {kHead, "lm_head", ""},
});
constexpr std::array kBamba = std::to_array<HfRow>({
    {kEmbedding, "embed_tokens", "tokens"},
    {kBlock, "feed_forward.gate_proj", "mlp.gate"},
    {kBlock, "feed_forward.up_proj", "mlp.up"},
    {kBlock, "feed_forward.down_proj", "mlp.down"},
    {kBlock, "input_layernorm", "ssm_norm"},
    {kBlock, "input_layernorm", "attention_norm"},
    {kBlock, "pre_ff_layernorm", "mlp_norm"},
});
constexpr std::array kBambaHead = std::to_array<HfRow>({
    {kHead, "final_layernorm", "norm"},
    {kHead, "lm_head", ""},
});
constexpr std::array kGptOssFirst = std::to_array<HfRow>({
    {kEmbedding, "embed_tokens", "tokens"},
    {kBlock, "self_attn.sinks", "attention.sinks", kBare},
});
constexpr std::array kGptOssExperts = std::to_array<HfRow>({
    {kBlock, "mlp.router", "experts.router", kAlone},
    {kBlock, "mlp.router", "experts.logits"},
    {kBlock, "mlp.experts.gate_up_proj", "experts.#.gate", HfStored::kTurnedStack},
    {kBlock, "mlp.experts.gate_up_proj", "experts.#.up", HfStored::kTurnedStack},
    {kBlock, "mlp.experts.gate_up_proj_bias", "experts.#.gate", HfStored::kBiasStack},
    {kBlock, "mlp.experts.gate_up_proj_bias", "experts.#.up", HfStored::kBiasStack},
    {kBlock, "mlp.experts.down_proj", "experts.#.down", HfStored::kTurnedStack},
    {kBlock, "mlp.experts.down_proj_bias", "experts.#.down", HfStored::kBiasStack},
});

// Buffers; those of a block without its name.
constexpr std::array<std::string_view, 2> kGpt2Ignored = {".attn.bias", ".attn.masked_bias"};
constexpr std::array<std::string_view, 2> kLlamaIgnored = {".self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"};
constexpr std::array<std::string_view, 3> kGptNeoxIgnored = {".attention.bias", ".attention.masked_bias",
                                                             ".attention.rotary_emb.inv_freq"};

}  // namespace

const HfNameTable& hf_name_table(Family family) {
  // In the order of HfNames.
  static const std::array<HfNameTable, 13> kNames = {
      HfNameTable{"transformer.", "h.", {kGpt2}, kGpt2Ignored},
      HfNameTable{"model.", "layers.", {kAttention, kGatedMlp, kNorms}, kLlamaIgnored},
      HfNameTable{"model.", "layers.", {kAttention, kMixtralExperts, kNorms}, kLlamaIgnored, {kAttention, kStackedExperts, kNorms}},
      HfNameTable{"model.", "layers.", {kAttention, kGatedMlp, kQwen3MoeExperts, kNorms}, kLlamaIgnored,
                  {kAttention, kGatedMlp, kStackedExperts, kNorms}},
      HfNameTable{"model.", "layers.", {kLatentRows, kGatedMlp, kDeepseekExperts, kQwen3MoeExperts, kNorms}, kLlamaIgnored,
                  {kLatentRows, kGatedMlp, kDeepseekExperts, kStackedExperts, kNorms}},
      HfNameTable{.prefix = "gpt_neox.", .blocks = "layers.", .rows = {kGptNeox}, .ignored = kGptNeoxIgnored, .head = "embed_out.weight"},
      HfNameTable{"model.", "layers.", {kPhi3, kNorms}, kLlamaIgnored},
      HfNameTable{"model.", "layers.", {kAttention, kGatedMlp, kNormsBehind}, kLlamaIgnored},
      HfNameTable{"model.", "layers.", {kAttention, kGatedMlp, kFourNorms}, kLlamaIgnored},
      HfNameTable{.prefix = "backbone.", .blocks = "layers.", .rows = {kOneBranch, kStateSpaceRows, kOtherBranches}, .mixer = "mixer"},
      HfNameTable{.prefix = "model.", .blocks = "layers.", .rows = {kBamba, kStateSpaceRows, kAttention, kBambaHead}, .mixer = "mamba"},
      HfNameTable{.prefix = "backbone.", .blocks = "layers.", .rows = {kOneBranch, kStateSpaceRows, kOtherBranches}, .mixer = "mixer",
                  .other_prefix = "model."},
      HfNameTable{"model.", "layers.", {kGptOssFirst, kAttention, kGptOssExperts, kNorms}, kLlamaIgnored}};
  return kNames[static_cast<size_t>(hf_family(family).names)];
}

std::span<const HfRow> stacked_expert_rows() { return kStackedExperts; }

}  // namespace lockstep::arch

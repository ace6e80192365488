// The model as data: one struct of sizes, resolved from a preset and the user's [model] table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/config/run_config.h"

namespace lockstep::arch {

// gpt2: Radford et al. 2019. llama: Touvron et al. 2023. mistral: Jiang et al. 2023, llama's block with a sliding window.
// qwen2: Yang et al. 2024, biases on q, k, v. qwen3: Yang et al. 2025, RMSNorm on every query and key head. mixtral: Jiang et al.
// 2024, mistral's block with experts; qwen3_moe: that of qwen3 with experts. deepseek_v3: DeepSeek-AI 2024, latent attention, and
// experts whose router has a bias of its own.
enum class Family { kGpt2, kLlama, kMistral, kQwen2, kQwen3, kMixtral, kQwen3Moe, kDeepseekV3 };

// What sets a family apart, one row each: fixed choices, and the defaults of the flags that a ModelConfig may change.
struct FamilyTraits {
  Family family = Family::kGpt2;
  std::string_view name{};
  bool layer_norm = false;         // LayerNorm with bias; else RMSNorm without
  bool learned_positions = false;  // a table of positions; else rotary (RoPE, Su et al. 2021)
  bool gated_mlp = false;          // SwiGLU (Shazeer 2020); else GELU-tanh
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool experts = false;  // only with experts; other families with a gated MLP may have them
  bool latent = false;   // only with latent attention; other families with rotary positions and RMSNorm may have it
  bool router_bias = false;  // of a router, whatever moe.balance is
};
// In the order of the enumeration.
inline constexpr FamilyTraits kFamilies[] = {
    {.family = Family::kGpt2, .name = "gpt2", .layer_norm = true, .learned_positions = true, .qkv_bias = true,
     .out_bias = true, .mlp_bias = true},
    {.family = Family::kLlama, .name = "llama", .gated_mlp = true},
    {.family = Family::kMistral, .name = "mistral", .gated_mlp = true},
    {.family = Family::kQwen2, .name = "qwen2", .gated_mlp = true, .qkv_bias = true},
    {.family = Family::kQwen3, .name = "qwen3", .gated_mlp = true, .qk_norm = true},
    {.family = Family::kMixtral, .name = "mixtral", .gated_mlp = true, .experts = true},
    {.family = Family::kQwen3Moe, .name = "qwen3_moe", .gated_mlp = true, .qk_norm = true, .experts = true},
    {.family = Family::kDeepseekV3, .name = "deepseek_v3", .gated_mlp = true, .experts = true, .latent = true, .router_bias = true},
};
constexpr const FamilyTraits& family_traits(Family family) { return kFamilies[static_cast<size_t>(family)]; }
constexpr std::string_view family_name(Family family) { return family_traits(family).name; }
std::vector<std::string> family_names();
// Nothing where no family has that name.
std::optional<Family> family_of(std::string_view name);

// How rotary frequencies are stretched for texts longer than those of the first training. linear: all divided by `factor`
// (Chen et al. 2023). llama3: wavelengths above original / low_freq_factor divided by `factor`, those below original /
// high_freq_factor kept, a line between (Grattafiori et al. 2024). yarn: frequencies of more than beta_fast turns within the original
// length kept, those of less than beta_slow divided by `factor`, a line between by their index; and scores scaled (Peng et al. 2023).
struct RopeScaling {
  enum class Kind { kNone, kLlama3, kLinear, kYarn };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1;                    // llama3 only, as the next two
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 0;  // tokens; llama3 and yarn
  double beta_fast = 32;                         // yarn only, as all below
  double beta_slow = 1;
  double mscale = 0;            // 0 = not given
  double mscale_all_dim = 0;    // the same
  double attention_factor = 0;  // of cosines and sines; 0 = what follows from `factor` and both mscales
  bool operator==(const RopeScaling&) const = default;
};
// What cosines and sines are multiplied by: 1 but for yarn.
double rope_attention_factor(const RopeScaling& scaling);

// Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2): queries are made of a latent of `q_rank` numbers of a token, keys and
// values of one of `kv_rank`, each behind an RMSNorm. A head of q and k is `nope` wide without positions and `rope` with rotary ones,
// whose keys all heads share.
struct LatentSizes {
  int64_t q_rank = 0;
  int64_t kv_rank = 0;  // 0 = the model's attention is not latent, and nothing here counts
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value = 0;  // width of a head of v
  bool interleaved = true;  // element 2 j of `rope` turns with 2 j + 1; else with j + rope / 2
  int64_t head() const { return nope + rope; }  // of q and k
  int64_t projected() const { return q_rank + kv_rank + rope; }  // what x is projected to
  bool operator==(const LatentSizes&) const = default;
};
// Epsilon of the RMSNorm of latents, whatever norm_eps is: transformers has it so.
inline constexpr double kLatentNormEps = 1e-6;

// One of the sums of a block, in forward order: x + branch(norm(x)).
struct Branch {
  std::string kind{};        // of the registry (branch_kind.h): "attention", "mlp"
  std::string name{};        // no two of a block have one: its parameters' names begin so, and it is the site of its dropout
  bool norm_before = true;   // false: it reads x itself
  bool norm_behind = false;  // x + norm(branch(x)) (OLMo 2); with norm_before both (Gemma 2)
  bool beside = false;       // it reads the x of the branch before it, and that x gets both sums (GPT-J, PaLM)
  // One norm for both: it reads what the branch before it reads, normed or not.
  bool shares_input() const { return beside && !norm_before; }
  std::string norm() const { return name + "_norm"; }
  std::string post_norm() const { return name + "_post_norm"; }
  std::string part(std::string_view last) const { return name + "." + std::string(last); }  // "attention.qkv"
  bool operator==(const Branch&) const = default;
};
using BlockSpec = std::vector<Branch>;
// Attention, and then an MLP.
const BlockSpec& usual_block();

inline constexpr int64_t kLoadExtras = 3;  // numbers that a block with experts tells of a step beside its E counts: nn/experts.h
// The same with what moe.imbalance_limit adds: further rounds in which the block ran.
inline int64_t load_extras(const config::MoeSection& moe) { return kLoadExtras + (moe.imbalance_limit ? 1 : 0); }

// Experts in the place of a block's MLP: SwiGLU layers [ffn, hidden] of which a router chooses `per_token` for every token
// (Shazeer et al. 2017). What a router does is said in config/run_config.h.
struct ExpertSizes {
  int64_t count = 0;      // E; 0 = the model has none, and nothing below counts
  int64_t per_token = 0;  // k
  int64_t ffn = 0;        // F of each
  int64_t shared = 0;     // every token goes through one more of shared * ffn; 0 = there is none
  config::Router router = config::Router::kSoftmaxAfterTopk;
  int64_t groups = 1;      // of count / groups neighbours
  int64_t top_groups = 1;  // of which a token may choose
  double routed_scale = 1;
  bool router_bias = false;         // [E], added to the scores when experts are chosen, not to the weights; balance = "bias" moves it
  std::vector<int> dense_layers{};  // blocks, from 0, that have an MLP all the same; ascending
  bool is_dense(int block) const;   // of the model's blocks, from 0: layer - 1
  bool operator==(const ExpertSizes&) const = default;
};

struct ModelConfig {
  Family family = Family::kGpt2;
  int64_t layers = 0;
  int64_t hidden = 0;      // D
  int64_t heads = 0;       // H
  int64_t kv_heads = 0;    // = heads for gpt2
  int64_t head_size = 0;   // K; heads * head_size may differ from hidden
  int64_t ffn = 0;         // F
  int64_t vocab_size = 0;  // V
  int64_t max_seq_len = 0;
  bool tied = true;  // the head's weight is the token embedding
  double norm_eps = 1e-5;
  double rope_theta = 10000;  // families with rotary positions
  double dropout = 0;         // on the embedding's sum and on both residual branches; not on attention probabilities
  RopeScaling rope_scaling{};
  int64_t sliding_window = 0;  // tokens a query sees, itself included; 0 = all before it. Of all layers; where a file gives it to some
                               // max_seq_len is not above it (hf_config.h, bounded_by_window)
  bool qkv_bias = traits().qkv_bias;  // a bias of q, k and v
  bool out_bias = traits().out_bias;  // of attention's output
  bool mlp_bias = traits().mlp_bias;  // of all linears of the MLP
  bool qk_norm = traits().qk_norm;    // RMSNorm over each head of q and k, before the rotation
  std::vector<BlockSpec> blocks{};    // of the layers, in turn; empty: all are usual_block()
  ExpertSizes experts{};              // in every block that is not dense, where its "mlp" would be
  LatentSizes latent{};               // in every block, where its "attention" would be; head_size is then latent.head()

  const FamilyTraits& traits() const { return family_traits(family); }
  bool has_experts() const { return experts.count > 0; }
  bool has_latent() const { return latent.kv_rank > 0; }
  bool operator==(const ModelConfig&) const = default;
};

// Of the scores of latent attention: 1 / sqrt(head), and with yarn's mscale_all_dim the square of 0.1 mscale_all_dim ln(factor) + 1.
double latent_score_scale(const ModelConfig& model);

std::vector<std::string> preset_names();
// The preset (default gpt2-10m) with the user's fields on top. `vocab_size` = 0 there and here means: from the tokenizer,
// whose size the caller passes (0 = none known: then the preset must have one). ConfigError LS1110.. for sizes that
// contradict each other, all at once, with the equation. With section.from the model is that of hf_config.h. `moe` says whether
// routers have a bias (balance "bias").
ModelConfig resolve_model(const config::ModelSection& section, int64_t tokenizer_vocab_size = 0, const config::MoeSection& moe = {});
// What in the model contradicts itself, an equation each ("heads(6) % kv_heads(4) = 2"); empty for a sound one.
std::vector<std::string> size_problems(const ModelConfig& model);
// The same model as a text of one line: "gpt2 12 x 768, 12 heads, ffn 3072, vocab 50257, 124.4M parameters". With experts also
// the parameters that a token goes through: "mixtral 32 x 4096, 32 heads (8 kv), 8 experts of ffn 14336, 2 per token, vocab 32000,
// 46.70B parameters, 12.88B active".
std::string describe(const ModelConfig& model);
// The same as checkpoints keep it, and back: CheckpointError LS1312 naming `origin` and the key where one is missing or of
// another type.
nlohmann::json model_json(const ModelConfig& model);
ModelConfig parse_model_json(const nlohmann::json& json, std::string_view origin);

}  // namespace lockstep::arch

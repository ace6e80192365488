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
enum class Family {
  kGpt2, kLlama, kMistral, kQwen2, kQwen3, kMixtral, kQwen3Moe, kDeepseekV3,
  kGptNeox, kPhi3, kOlmo2, kOlmo3, kSmollm3, kGemma3, kMamba2, kBamba, kNemotronH, kGptOss,
  kFalconH1,
};

// The nonlinearity of an MLP. Gated ones take gate | up and give f(gate) * up (Shazeer 2020).
enum class Activation {
  kGeluTanh,  // GELU by its tanh form, as GPT-2 uses it
  kGelu,      // GELU by erf
  kRelu2,     // max(x, 0)^2 (So et al. 2021, Primer)
  kSwiGlu,    // silu(gate) * up
  kGeGlu,     // gelu by its tanh form(gate) * up
};
constexpr bool is_gated(Activation activation) { return activation == Activation::kSwiGlu || activation == Activation::kGeGlu; }

// What sets a family apart, one row each: fixed choices, and the defaults of the flags that a ModelConfig may change.
struct FamilyTraits {
  Family family = Family::kGpt2;
  std::string_view name{};
  bool layer_norm = false;         // LayerNorm with bias; else RMSNorm without
  bool learned_positions = false;  // a table of positions; else rotary (RoPE, Su et al. 2021)
  Activation activation = Activation::kGeluTanh;
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool experts = false;  // only with experts; other families with a gated MLP may have them
  bool latent = false;   // only with latent attention; other families with rotary positions and RMSNorm may have it
  bool router_bias = false;  // of a router, whatever moe.balance is
  bool norm_plus_one = false;      // an RMSNorm multiplies by 1 + its weight, which begins at zero (Gemma)
  bool whole_qk_norm = false;      // with qk_norm: over all heads of q, and of k, together (OLMo 2); else over each head
};
// In the order of the enumeration.
inline constexpr FamilyTraits kFamilies[] = {
    {.family = Family::kGpt2, .name = "gpt2", .layer_norm = true, .learned_positions = true, .qkv_bias = true,
     .out_bias = true, .mlp_bias = true},
    {.family = Family::kLlama, .name = "llama", .activation = Activation::kSwiGlu},
    {.family = Family::kMistral, .name = "mistral", .activation = Activation::kSwiGlu},
    {.family = Family::kQwen2, .name = "qwen2", .activation = Activation::kSwiGlu, .qkv_bias = true},
    {.family = Family::kQwen3, .name = "qwen3", .activation = Activation::kSwiGlu, .qk_norm = true},
    {.family = Family::kMixtral, .name = "mixtral", .activation = Activation::kSwiGlu, .experts = true},
    {.family = Family::kQwen3Moe, .name = "qwen3_moe", .activation = Activation::kSwiGlu, .qk_norm = true, .experts = true},
    {.family = Family::kDeepseekV3, .name = "deepseek_v3", .activation = Activation::kSwiGlu, .experts = true, .latent = true, .router_bias = true},
    {.family = Family::kGptNeox, .name = "gpt_neox", .layer_norm = true, .activation = Activation::kGelu, .qkv_bias = true,
     .out_bias = true, .mlp_bias = true},
    {.family = Family::kPhi3, .name = "phi3", .activation = Activation::kSwiGlu},
    {.family = Family::kOlmo2, .name = "olmo2", .activation = Activation::kSwiGlu, .qk_norm = true, .whole_qk_norm = true},
    {.family = Family::kOlmo3, .name = "olmo3", .activation = Activation::kSwiGlu, .qk_norm = true, .whole_qk_norm = true},
    {.family = Family::kSmollm3, .name = "smollm3", .activation = Activation::kSwiGlu},
    {.family = Family::kGemma3, .name = "gemma3_text", .activation = Activation::kGeGlu, .qk_norm = true, .norm_plus_one = true},
    {.family = Family::kMamba2, .name = "mamba2", .activation = Activation::kSwiGlu},
    {.family = Family::kBamba, .name = "bamba", .activation = Activation::kSwiGlu},
    {.family = Family::kNemotronH, .name = "nemotron_h", .activation = Activation::kRelu2},
    {.family = Family::kGptOss, .name = "gpt_oss", .activation = Activation::kSwiGlu, .qkv_bias = true, .out_bias = true, .experts = true},
    {.family = Family::kFalconH1, .name = "falcon_h1", .activation = Activation::kSwiGlu},
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
  bool truncate = true;         // the line begins and ends at whole indices
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

// How attention turns queries and keys by their positions.
enum class Rotation {
  kUsual,  // rope_theta, rope_scaling
  kLocal,  // rope_local_theta, without scaling (layers with a window of Gemma 3)
  kNone,   // not at all (NoPE: Kazemnejad et al. 2023)
};

// One of the sums of a block, in forward order: x + branch(norm(x)).
struct Branch {
  std::string kind{};        // of the registry (branch_kind.h): "attention", "mlp", "state_space"
  std::string name{};        // no two of a block have one: its parameters' names begin so, and it is the site of its dropout
  bool norm_before = true;   // false: it reads x itself
  bool norm_behind = false;  // x + norm(branch(x)) (OLMo 2); with norm_before both (Gemma 2)
  bool beside = false;       // it reads the x of the branch before it, and that x gets both sums (GPT-J, PaLM)
  std::optional<int64_t> window{};         // of attention: tokens a query sees, itself included; 0: all; unset: model.sliding_window
  Rotation rotation = Rotation::kUsual;    // of attention
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

// A state space (Mamba-2: Dao and Gu 2024) of H heads, each P wide with P x N numbers of state; the heads of a group share B and C:
//   z | x | B | C | dt = W x_in, a causal depth-wise convolution and silu over x | B | C, delta = softplus(dt + dt_bias) in `step_limit`,
//   state_t = exp(-exp(a_log) delta_t) state_(t-1) + delta_t x_t B_t^T,  y_t = state_t C_t + d x_t,
//   out = W_out (norm(y * silu(z))).
struct StateSpaceSizes {
  int64_t heads = 0;      // H; 0 = the model has none, and nothing here counts
  int64_t head_size = 0;  // P
  int64_t groups = 1;     // G of B and C, divides H
  int64_t state = 0;      // N
  int64_t convolution = 4;  // W: tokens that the convolution sees
  int64_t chunk = 256;      // tokens of a chunk of the scan
  int64_t norm_groups = 1;  // over which the RMSNorm of the output is taken, divides H P; 0: no norm
  bool convolution_bias = true;
  bool projection_bias = false;  // of both projections
  double step_least = 0, step_most = 0;  // limits of delta; 0, 0: none
  int64_t inner() const { return heads * head_size; }
  int64_t convolved() const { return inner() + 2 * groups * state; }     // x | B | C
  int64_t projected() const { return inner() + convolved() + heads; }   // z | x | B | C | dt
  bool operator==(const StateSpaceSizes&) const = default;
};
// Fixed factors that keep the sizes of activations alike in models of all widths (muP: Yang et al. 2022), as Falcon-H1 (Zuo et al. 2025)
// has them. Each is of what a linear puts out, or of what it is given, which is the same number for number but for rounding.
struct Multipliers {
  double attention_in = 1, key = 1, attention_out = 1;
  double state_in = 1, state_out = 1;
  double z = 1, x = 1, b = 1, c = 1, dt = 1;  // of the parts of a state space's projection, beside state_in
  double gate = 1, down = 1;                  // of a gated MLP
  double logits = 1;
  bool operator==(const Multipliers&) const = default;
};
inline constexpr std::string_view kStateSpace = "state_space";  // kind of the branch, whose name is "ssm"

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
  bool logit_bias = false;  // [E], trained, of the router's logits ("experts.logits.bias"); not router_bias, which only chooses
  bool biases = false;      // of gate, up and down of every expert
  // > 0: gate and up are clamped, gate to at most this and up to at most this on both sides, and an expert is
  // (up + 1) * gate * sigmoid(1.702 gate) (gpt-oss); 0: SwiGLU
  double clamp = 0;
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
  int64_t sliding_window = 0;  // tokens a query sees, itself included; 0 = all before it. Of all layers that
                               // say nothing of it (Branch::window)
  bool qkv_bias = traits().qkv_bias;  // a bias of q, k and v
  bool out_bias = traits().out_bias;  // of attention's output
  bool mlp_bias = traits().mlp_bias;  // of all linears of the MLP
  bool qk_norm = traits().qk_norm;    // RMSNorm of q and k, before the rotation: FamilyTraits::whole_qk_norm
  Activation activation = traits().activation;
  int64_t rotary_size = 0;        // elements of a head that are turned, its first ones; 0 = all
  double rope_local_theta = 0;    // of Rotation::kLocal
  double attention_scale = 0;     // of scores; 0 = 1 / sqrt(head_size). Not of latent attention
  bool attention_sinks = false;   // a learned score for each query head, with no value, that every query sees (gpt-oss)
  double embedding_scale = 1;     // of token embeddings, rounded to the dtype of the run (Gemma)
  std::vector<BlockSpec> blocks{};    // of the layers, in turn; empty: all are usual_block()
  ExpertSizes experts{};              // in every block that is not dense, where its "mlp" would be
  LatentSizes latent{};               // in every block, where its "attention" would be; head_size is then latent.head()
  StateSpaceSizes state_space{};      // of branches "state_space", which `blocks` says
  Multipliers multipliers{};

  const FamilyTraits& traits() const { return family_traits(family); }
  bool has_experts() const { return experts.count > 0; }
  bool has_latent() const { return latent.kv_rank > 0; }
  bool has_state_space() const { return state_space.heads > 0; }
  bool gated_mlp() const { return is_gated(activation); }
  int64_t rotated() const { return rotary_size > 0 ? rotary_size : head_size; }
  int64_t window_of(const Branch& branch) const { return branch.window.value_or(sliding_window); }
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

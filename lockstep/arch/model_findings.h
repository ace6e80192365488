// A [model] section judged: the model that it describes, or what is wrong with it and what would mend that. resolve_model()
// refuses what is found; whoever judges more of a configuration tries the ways out against all of it first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::arch {

// In the order in which a section is judged: LayoutProblem::depth of what is found.
enum ModelDepth { kBoundsDepth, kNamesDepth, kFamilyDepth, kVocabularyDepth, kSizesDepth };

struct ModelFindings {
  std::string code{};     // LS1110 to LS1114, LS1116
  std::string heading{};  // above several problems; empty where one says all
  std::vector<config::LayoutProblem> problems{};
  std::optional<ModelConfig> model{};  // where there are none
};

// As resolve_model(), which see; ways out are left out where nobody asks for them. DataError LS1115, LS1117, LS1118, LS1205 for
// the files of section.from.
ModelFindings judge_model(const config::ModelSection& section, int64_t tokenizer_vocab_size, const config::MoeSection& moe = {},
                          bool with_ways = true);
// The same where section.from names a directory: its model with the section's dropout and max_seq_len. LS1116 for any other key
// beside `from`, and for a max_seq_len that the model cannot have.
ModelFindings judge_hf_model(const config::ModelSection& section, const config::MoeSection& moe);
// Of its routers.
inline bool has_router_bias(const ModelConfig& model, const config::MoeSection& moe) {
  return model.has_experts() && (moe.balance == config::Balance::kBias || model.traits().router_bias);
}

// Of a ModelConfig or a ModelSection, which call them the same.
template <typename Model, typename Visit>
void visit_sizes(Model& model, Visit visit) {
  visit("layers", model.layers);
  visit("hidden", model.hidden);
  visit("heads", model.heads);
  visit("kv_heads", model.kv_heads);
  visit("head_size", model.head_size);
  visit("ffn", model.ffn);
  visit("vocab_size", model.vocab_size);
  visit("max_seq_len", model.max_seq_len);
}
// The same of experts: the key of the section, and the least there may be.
template <typename Visit>
void visit_expert_sizes(const config::ModelSection& section, Visit visit) {
  visit("experts", section.experts, 1);
  visit("experts_per_token", section.experts_per_token, 1);
  visit("expert_ffn", section.expert_ffn, 1);
  visit("shared_experts", section.shared_experts, 0);
  visit("router_groups", section.router_groups, 1);
  visit("router_top_groups", section.router_top_groups, 1);
}
template <typename Visit>
void visit_expert_sizes(const ModelConfig& model, Visit visit) {
  visit("experts", model.experts.count, 1);
  visit("experts_per_token", model.experts.per_token, 1);
  visit("expert_ffn", model.experts.ffn, 1);
  visit("shared_experts", model.experts.shared, 0);
  visit("router_groups", model.experts.groups, 1);
  visit("router_top_groups", model.experts.top_groups, 1);
}
// The same of latent attention, whose sizes are 1 or more.
template <typename Visit>
void visit_latent_sizes(const config::ModelSection& section, Visit visit) {
  visit("q_lora_rank", section.q_lora_rank);
  visit("kv_lora_rank", section.kv_lora_rank);
  visit("qk_nope_head_dim", section.qk_nope_head_dim);
  visit("qk_rope_head_dim", section.qk_rope_head_dim);
  visit("v_head_dim", section.v_head_dim);
}
template <typename Visit>
void visit_latent_sizes(const ModelConfig& model, Visit visit) {
  visit("q_lora_rank", model.latent.q_rank);
  visit("kv_lora_rank", model.latent.kv_rank);
  visit("qk_nope_head_dim", model.latent.nope);
  visit("qk_rope_head_dim", model.latent.rope);
  visit("v_head_dim", model.latent.value);
}
// The same of state spaces: the key of the section, and the least there may be.
template <typename Visit>
void visit_state_sizes(const config::ModelSection& section, Visit visit) {
  visit("state_heads", section.state_heads, 1);
  visit("state_head_size", section.state_head_size, 1);
  visit("state_size", section.state_size, 1);
  visit("state_groups", section.state_groups, 1);
  visit("state_convolution", section.state_convolution, 2);
  visit("state_chunk", section.state_chunk, 1);
}
template <typename Visit>
void visit_state_sizes(const ModelConfig& model, Visit visit) {
  visit("state_heads", model.state_space.heads, 1);
  visit("state_head_size", model.state_space.head_size, 1);
  visit("state_size", model.state_space.state, 1);
  visit("state_groups", model.state_space.groups, 1);
  visit("state_convolution", model.state_space.convolution, 2);
  visit("state_chunk", model.state_space.chunk, 1);
}
// Of all blocks: each is three rows of the parameter table.
inline constexpr int64_t kMostExperts = int64_t{1} << 15;

// Products of two others fit into 64 bits.
constexpr int64_t most_of_size(std::string_view name) {
  if (name == "state_convolution") return 1 << 8;
  if (name.starts_with("state_")) return name == "state_chunk" ? 1 << 14 : 1 << 16;
  const bool of_experts = (name != "expert_ffn" && name.find("expert") != std::string_view::npos) || name.starts_with("router");
  return of_experts ? kMostExperts : int64_t{1} << (name == "layers" || name.ends_with("_head_dim") ? 16 : 31);
}

// Sizes out of their range, which begins at 1.
std::vector<config::LayoutProblem> bound_problems(const config::ModelSection& section);
// What size_problems() says, with ways out; and where nobody has set the head_size, heads that do not fill the hidden size.
std::vector<config::LayoutProblem> contradictions(const ModelConfig& model, bool derived_head_size, bool with_ways);
// Those of experts (model_findings_experts.cpp), which contradictions() has too.
std::vector<config::LayoutProblem> expert_contradictions(const ModelConfig& model, bool with_ways);
// Keys of experts, or a family of experts, where the section gives the model none.
std::vector<config::LayoutProblem> problems_without_experts(const config::ModelSection& section, const ModelConfig& model);

// The same of latent attention (model_findings_latent.cpp).
std::vector<config::LayoutProblem> latent_contradictions(const ModelConfig& model, bool with_ways);
std::vector<config::LayoutProblem> problems_without_latent(const config::ModelSection& section, const ModelConfig& model);

// Numbers of state of one sequence in one layer: costs that count them for every chunk fit into 64 bits.
inline constexpr int64_t kMostStates = int64_t{1} << 31;

// model.mixers and model.feed_forwards before there is a model (model_findings_letters.cpp): `given` is the section with what the preset
// or the family says of them.
std::vector<config::LayoutProblem> letter_problems(const config::ModelSection& section, const config::ModelSection& given,
                                                   const config::ModelSection& preset);
// Keys that no layer of the model reads: of attention, an MLP, a state space.
std::vector<config::LayoutProblem> problems_of_branches(const config::ModelSection& section, const ModelConfig& model);
// What in the branches of the layers contradicts the model, and the sizes of state spaces (model_findings_branches.cpp); contradictions()
// has them too.
std::vector<config::LayoutProblem> branch_contradictions(const ModelConfig& model, bool with_ways);

}  // namespace lockstep::arch

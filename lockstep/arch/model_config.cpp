#include "lockstep/arch/model_config.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <optional>
#include <utility>

#include "lockstep/arch/model_findings.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/check.h"
#include "lockstep/config/check_parts.h"

namespace lockstep::arch {
namespace {

using Preset = std::pair<std::string, config::ModelSection>;

// The test models are as small as they can be and still be cut into 1, 2, 3 or 4 parts. gpt2-10m has 10.4M parameters
// with a vocabulary of 8192, which is that of the tokenizer. gpt-100b has GPT-3's shape.
// clang-format off
const std::vector<Preset>& presets() {  // not a constant: who starts before main() asks for models too
  static const std::vector<Preset> all = {
      {"gpt2-10m", {.family = "gpt2", .layers = 4, .hidden = 384, .heads = 12, .max_seq_len = 512}},
      {"gpt2-124m", {.family = "gpt2", .layers = 12, .hidden = 768, .heads = 12, .vocab_size = 50257, .max_seq_len = 1024}},
      {"gpt2-1.5b", {.family = "gpt2", .layers = 48, .hidden = 1600, .heads = 25, .vocab_size = 50257, .max_seq_len = 1024}},
      {"gpt-100b", {.family = "gpt2", .layers = 90, .hidden = 9600, .heads = 80, .vocab_size = 50257, .max_seq_len = 2048}},
      {"gpt2-test", {.family = "gpt2", .layers = 2, .hidden = 48, .heads = 12, .vocab_size = 512, .max_seq_len = 64}},
      {"llama-15m", {.family = "llama", .layers = 6, .hidden = 288, .heads = 6, .vocab_size = 32000, .max_seq_len = 256}},
      {"llama3-8b", {.family = "llama", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336,
                     .vocab_size = 128256, .max_seq_len = 8192, .tied = false, .rope_theta = 500000}},
      {"llama-test", {.family = "llama", .layers = 3, .hidden = 48, .heads = 12, .kv_heads = 4, .ffn = 144,
                      .vocab_size = 512, .max_seq_len = 64, .tied = false}},
      {"mixtral-8x7b", {.family = "mixtral", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336,
                        .vocab_size = 32000, .max_seq_len = 32768, .tied = false, .rope_theta = 1e6, .experts = 8,
                        .experts_per_token = 2}},
      {"mixtral-test", {.family = "mixtral", .layers = 4, .hidden = 64, .heads = 8, .kv_heads = 4, .ffn = 96,
                        .vocab_size = 512, .max_seq_len = 64, .tied = false, .experts = 8, .experts_per_token = 2}},
      {"qwen3-30b-a3b", {.family = "qwen3_moe", .layers = 48, .hidden = 2048, .heads = 32, .kv_heads = 4, .head_size = 128,
                         .ffn = 6144, .vocab_size = 151936, .max_seq_len = 40960, .tied = false, .norm_eps = 1e-6,
                         .rope_theta = 1e6, .experts = 128, .experts_per_token = 8, .expert_ffn = 768}},
      // As it was pretrained: in sequences of 4096, before YaRN.
      {"deepseek-v3", {.family = "deepseek_v3", .layers = 61, .hidden = 7168, .heads = 128, .ffn = 18432, .vocab_size = 129280,
                       .max_seq_len = 4096, .tied = false, .norm_eps = 1e-6, .q_lora_rank = 1536, .kv_lora_rank = 512,
                       .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128, .experts = 256,
                       .experts_per_token = 8, .expert_ffn = 2048, .shared_experts = 1,
                       .dense_layers = config::DenseLayers{.first = 3}, .router = config::Router::kSigmoid, .router_groups = 8,
                       .router_top_groups = 4, .routed_scale = 2.5}},
      {"deepseek-test", {.family = "deepseek_v3", .layers = 4, .hidden = 64, .heads = 8, .ffn = 96, .vocab_size = 512,
                         .max_seq_len = 64, .tied = false, .q_lora_rank = 24, .kv_lora_rank = 20, .qk_nope_head_dim = 12,
                         .qk_rope_head_dim = 4, .v_head_dim = 8, .experts = 8, .experts_per_token = 2, .expert_ffn = 32,
                         .shared_experts = 1, .dense_layers = config::DenseLayers{.first = 1},
                         .router = config::Router::kSigmoid, .router_groups = 4, .router_top_groups = 2, .routed_scale = 2.5}},
  };
  return all;
}
// clang-format on
constexpr std::string_view kDefaultPreset = "gpt2-10m";

// A name that is none of several: the nearest, or where none is near all of them.
std::vector<config::Suggestion> names_near(const char* key, const std::string& name, const std::vector<std::string>& names) {
  const std::string near = nearest(name, names);
  if (near.empty()) return config::values_of(key, names);
  return {{.changes = {{key, near}}, .text = cat("did you mean '", near, "'?")}};
}

ModelFindings no_such_preset(const std::string& name) {
  const std::vector<std::string> names = preset_names();
  const std::string all = nearest(name, names).empty() ? cat("; there are ", join(names, ", ")) : "";
  return {.code = "LS1111",
          .problems = {{.key = "model.preset",
                        .what = cat("no model preset '", name, "'", all),
                        .ways = names_near("model.preset", name, names),
                        .depth = kNamesDepth}}};
}

ModelFindings no_such_family(const config::ModelSection& section) {
  const std::vector<std::string> names = family_names();
  return {.code = "LS1112",
          .problems = {{.key = "model.family",
                        .what = cat("model.family = \"", *section.family, "\" is none of ", join(names, ", ")),
                        .ways = names_near("model.family", *section.family, names),
                        .depth = kFamilyDepth}}};
}

constexpr int64_t kUsualPerToken = 2;
constexpr int64_t kUsualLayers = 12, kUsualHidden = 768, kUsualHead = 64, kUsualVocabulary = 8192;

// Some of layers, hidden and heads are missing: usual values beside those that are there.
ModelFindings no_such_sizes(const config::ModelSection& section) {
  const int64_t hidden = section.hidden.value_or(section.heads ? *section.heads * kUsualHead : kUsualHidden);
  int64_t head = std::min(kUsualHead, hidden);
  while (hidden % head != 0 || (head % 2 != 0 && head > 1)) --head;
  config::Suggestion sizes;
  std::vector<std::string> missing, texts;
  const auto add = [&](const char* name, bool given, int64_t value) {
    if (given) return;
    missing.push_back(name);
    sizes.changes.push_back({cat("model.", name), cat(value)});
    texts.push_back(cat(name, " = ", value));
  };
  add("layers", section.layers.has_value(), kUsualLayers);
  add("hidden", section.hidden.has_value(), hidden);
  add("heads", section.heads.has_value(), hidden / head);
  sizes.text = cat("give them, as ", join(texts, " and "));
  return {.code = "LS1113",
          .problems = {{.key = cat("model.", missing.front()),
                        .what = cat("[model] without a preset needs ", join(missing, ", "), " as well"),
                        .ways = std::vector{std::move(sizes)} + config::values_of("model.preset", preset_names()),
                        .depth = kNamesDepth}}};
}

// Of a model that its fields alone describe: what follows from them.
ModelConfig from_fields(const config::ModelSection& section) {
  ModelConfig model{.family = section.family ? family_of(*section.family).value() : Family::kGpt2};
  model.hidden = *section.hidden;
  model.heads = model.kv_heads = *section.heads;
  // A gated layer has three matrices: 8/3 of the hidden size gives it the parameters of gpt2's two at 4.
  model.ffn = model.traits().gated_mlp ? (8 * model.hidden / 3 + 63) / 64 * 64 : 4 * model.hidden;
  model.max_seq_len = 1024;
  return model;
}

// model.norm and model.branches as a list; none where both are those of usual_block().
std::vector<BlockSpec> blocks_of(const config::ModelSection& section) {
  using config::BranchOrder, config::NormPlace;
  const NormPlace norm = section.norm.value_or(NormPlace::kBefore);
  const BranchOrder order = section.branches.value_or(BranchOrder::kSequential);
  BlockSpec block = usual_block();
  for (Branch& branch : block) {
    branch.norm_before = norm != NormPlace::kBehind;
    branch.norm_behind = norm != NormPlace::kBefore;
  }
  Branch& mlp = block.back();
  mlp.beside = order != BranchOrder::kSequential;
  mlp.norm_before = mlp.norm_before && order != BranchOrder::kParallel;
  if (block == usual_block()) return {};
  return {block};
}

// A number of blocks as a list; of more than there are one that does not fit (contradictions).
std::vector<int> dense_layers_of(const config::DenseLayers& dense, int64_t layers) {
  if (!dense.first) return dense.list;
  std::vector<int> blocks(static_cast<size_t>(std::min<int64_t>(*dense.first, layers + 1)));
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

// model.experts and what belongs to it. A width that the base has is of the base's hidden size.
ExpertSizes experts_of(const config::ModelSection& section, const ModelConfig& base, const ModelConfig& model) {
  ExpertSizes experts = base.experts;
  experts.count = section.experts.value_or(experts.count);
  if (experts.count == 0) return {};
  const bool own_width = base.has_experts() && base.experts.ffn != base.ffn;
  const int64_t width = own_width ? std::max<int64_t>(1, base.experts.ffn * model.hidden / base.hidden) : model.ffn;
  experts.ffn = section.expert_ffn.value_or(width);
  experts.per_token = section.experts_per_token.value_or(base.has_experts() ? experts.per_token : std::min(kUsualPerToken, experts.count));
  experts.shared = section.shared_experts.value_or(experts.shared);
  experts.router = section.router.value_or(experts.router);
  experts.groups = section.router_groups.value_or(experts.groups);
  experts.top_groups = section.router_top_groups.value_or(experts.groups == base.experts.groups ? experts.top_groups : experts.groups);
  experts.routed_scale = section.routed_scale.value_or(experts.routed_scale);
  if (section.dense_layers) experts.dense_layers = dense_layers_of(*section.dense_layers, model.layers);
  return experts;
}

// Latent attention, where the base or the section has it.
LatentSizes latent_of(const config::ModelSection& section, const LatentSizes& base) {
  LatentSizes latent = base;
  latent.q_rank = section.q_lora_rank.value_or(base.q_rank);
  latent.kv_rank = section.kv_lora_rank.value_or(base.kv_rank);
  latent.nope = section.qk_nope_head_dim.value_or(base.nope);
  latent.rope = section.qk_rope_head_dim.value_or(base.rope);
  latent.value = section.v_head_dim.value_or(base.value);
  return latent.kv_rank > 0 ? latent : LatentSizes();
}

// The section's fields over `base`, whose flags are its family's. Sizes that follow from a changed one are derived again unless
// they are given too.
ModelConfig with_fields(const config::ModelSection& section, const ModelConfig& base) {
  ModelConfig model{.family = section.family ? family_of(*section.family).value() : base.family};
  model.layers = section.layers.value_or(base.layers);
  model.hidden = section.hidden.value_or(base.hidden);
  model.heads = section.heads.value_or(base.heads);
  model.kv_heads = section.kv_heads.value_or(base.kv_heads == base.heads ? model.heads : base.kv_heads);
  const bool same_head = model.hidden == base.hidden && model.heads == base.heads && base.head_size > 0;
  model.head_size = section.head_size.value_or(same_head ? base.head_size : model.hidden / model.heads);
  model.latent = latent_of(section, base.latent);
  if (model.has_latent()) model.head_size = section.head_size.value_or(model.latent.head());
  const bool same_hidden = model.hidden == base.hidden;
  model.ffn = section.ffn.value_or(same_hidden ? base.ffn : base.ffn * model.hidden / base.hidden);
  model.vocab_size = section.vocab_size.value_or(base.vocab_size);
  model.max_seq_len = section.max_seq_len.value_or(base.max_seq_len);
  model.tied = section.tied.value_or(base.tied);
  model.norm_eps = section.norm_eps.value_or(base.norm_eps);
  model.rope_theta = section.rope_theta.value_or(base.rope_theta);
  model.dropout = section.dropout.value_or(base.dropout);
  model.blocks = blocks_of(section);  // no preset has its own
  model.experts = experts_of(section, base, model);
  return model;
}

// Nothing where there is none.
std::optional<ModelConfig> find_preset(const std::string& name) {
  const auto found = std::ranges::find(presets(), name, &Preset::first);
  if (found == presets().end()) return std::nullopt;
  return with_fields(found->second, from_fields(found->second));
}

ModelFindings sizes_that_do_not_fit(std::vector<config::LayoutProblem> problems) {
  return {.code = "LS1110", .heading = "[model] these sizes do not fit:", .problems = std::move(problems)};
}

ModelFindings no_vocabulary(const std::string& preset) {
  return {.code = "LS1114",
          .problems = {{.key = "model.vocab_size",
                        .what = cat("the vocabulary size of the model is unknown: ",
                                    preset.empty() ? "it is taken" : cat("preset ", preset, " takes it"),
                                    " from the tokenizer, and none is given"),
                        .ways = {{.changes = {{"model.vocab_size", cat(kUsualVocabulary)}}, .text = "set model.vocab_size"}},
                        .elsewhere = "name a tokenizer in data.tokenizer",
                        .depth = kVocabularyDepth}}};
}

// "attention beside mlp (same norm)".
std::string text_of(const BlockSpec& block) {
  std::string text;
  for (const Branch& branch : block) {
    if (!text.empty()) text += branch.beside ? " beside " : " then ";
    text += branch.name;
    if (branch.norm_behind)
      text += branch.norm_before ? " (norms before and behind)" : " (norm behind)";
    else if (!branch.norm_before)
      text += branch.beside ? " (same norm)" : " (no norm)";
  }
  return text;
}

// "124.4M".
std::string count_text(int64_t parameters) {
  const double number = static_cast<double>(parameters);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), parameters < 1'000'000'000 ? "%.1fM" : "%.2fB", number / (number < 1e9 ? 1e6 : 1e9));
  return text.data();
}

// "32 heads (8 kv)"; "128 heads of latents 1536 and 512".
std::string heads_text(const ModelConfig& model) {
  const LatentSizes& latent = model.latent;
  if (model.has_latent()) return cat(model.heads, " heads of latents ", latent.q_rank, " and ", latent.kv_rank);
  return cat(model.heads, " heads", model.kv_heads == model.heads ? "" : cat(" (", model.kv_heads, " kv)"));
}

// "ffn 3072"; "8 experts of ffn 14336, 2 per token", with what else there is.
std::string feed_forward_text(const ModelConfig& model) {
  const ExpertSizes& experts = model.experts;
  const std::string dense = cat("ffn ", model.ffn);
  if (!model.has_experts()) return dense;
  const size_t blocks = experts.dense_layers.size();
  return cat(blocks == 0 ? "" : cat(dense, " in ", blocks, blocks == 1 ? " block, " : " blocks, "), experts.count, " experts of ffn ",
             experts.ffn, ", ", experts.per_token, experts.shared == 0 ? "" : cat(" and ", experts.shared, " shared"), " per token");
}

}  // namespace

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const FamilyTraits& traits : kFamilies) names.emplace_back(traits.name);
  return names;
}

std::optional<Family> family_of(std::string_view name) {
  const auto* found = std::ranges::find(kFamilies, name, &FamilyTraits::name);
  return found == std::end(kFamilies) ? std::nullopt : std::optional(found->family);
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, section] : presets()) names.push_back(name);
  return names;
}

ModelFindings judge_model(const config::ModelSection& section, int64_t tokenizer_vocab_size, const config::MoeSection& moe, bool with_ways) {
  if (std::vector<config::LayoutProblem> beyond = bound_problems(section); !beyond.empty())
    return sizes_that_do_not_fit(std::move(beyond));
  if (!section.from.empty()) return judge_hf_model(section, moe);
  std::string preset = section.preset;
  // Whoever names one of these describes the model by its fields alone, and names all of its sizes.
  const bool by_fields = section.family || section.layers || section.hidden || section.heads;
  if (preset.empty() && !by_fields) preset = kDefaultPreset;
  const bool has_sizes = section.layers && section.hidden && section.heads;
  if (!preset.empty() && !find_preset(preset)) return no_such_preset(preset);
  if (preset.empty() && !has_sizes) return no_such_sizes(section);
  if (section.family && !family_of(*section.family)) return no_such_family(section);
  ModelConfig model = with_fields(section, preset.empty() ? from_fields(section) : find_preset(preset).value());
  if (model.vocab_size == 0) model.vocab_size = tokenizer_vocab_size;
  if (model.vocab_size == 0) return no_vocabulary(preset);
  model.experts.router_bias = has_router_bias(model, moe);
  std::vector<config::LayoutProblem> problems = contradictions(model, !section.head_size && !model.has_latent(), with_ways);
  for (config::LayoutProblem& problem : problems_without_latent(section, model)) problems.push_back(std::move(problem));
  for (config::LayoutProblem& problem : problems_without_experts(section, model)) problems.push_back(std::move(problem));
  if (!problems.empty()) return sizes_that_do_not_fit(std::move(problems));
  return {.model = model};
}

ModelConfig resolve_model(const config::ModelSection& section, int64_t tokenizer_vocab_size, const config::MoeSection& moe) {
  ModelFindings found = judge_model(section, tokenizer_vocab_size, moe);
  if (found.model) return *std::move(found.model);
  config::Trial trial;
  trial.loaded.config.model = section;
  keep_what_holds(found.problems, trial, [&](const config::Trial& changed) {
    return judge_model(changed.loaded.config.model, tokenizer_vocab_size, moe, false).problems;
  });
  config::refuse(trial.loaded, found.code, found.heading, found.problems);
}

bool ExpertSizes::is_dense(int block) const { return std::ranges::binary_search(dense_layers, block); }

std::string describe(const ModelConfig& model) {
  std::vector<std::string> blocks;
  for (const BlockSpec& block : model.blocks) blocks.push_back(text_of(block));
  return cat(family_name(model.family), " ", model.layers, " x ", model.hidden, blocks.empty() ? "" : " of " + join(blocks, " / "),
             ", ", heads_text(model), ", ", feed_forward_text(model), ", vocab ", model.vocab_size, ", ", count_text(num_parameters(model)), " parameters",
             model.has_experts() ? cat(", ", count_text(num_active_parameters(model)), " active") : "");
}

}  // namespace lockstep::arch

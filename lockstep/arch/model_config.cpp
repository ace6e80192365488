#include "lockstep/arch/model_config.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "lockstep/arch/layer_letters.h"
#include "lockstep/arch/model_findings.h"
#include "lockstep/arch/own_preset.h"
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
      {"llama3-70b", {.family = "llama", .layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 8, .ffn = 28672,
                      .vocab_size = 128256, .max_seq_len = 8192, .tied = false, .rope_theta = 500000}},
      {"llama3-405b", {.family = "llama", .layers = 126, .hidden = 16384, .heads = 128, .kv_heads = 8, .ffn = 53248,
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
      {"qwen3-235b-a22b", {.family = "qwen3_moe", .layers = 94, .hidden = 4096, .heads = 64, .kv_heads = 4, .head_size = 128,
                           .ffn = 12288, .vocab_size = 151936, .max_seq_len = 40960, .tied = false, .norm_eps = 1e-6,
                           .rope_theta = 1e6, .experts = 128, .experts_per_token = 8, .expert_ffn = 1536}},
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
      // As state-spaces/mamba2-130m; without positions, so any length would do.
      {"mamba2-130m", {.family = "mamba2", .layers = 24, .hidden = 768, .vocab_size = 50288, .max_seq_len = 65536, .mixers = "M",
                       .feed_forwards = "-", .state_heads = 24, .state_head_size = 64, .state_size = 128}},
      {"mamba2-test", {.family = "mamba2", .layers = 3, .hidden = 48, .vocab_size = 512, .max_seq_len = 64, .mixers = "M",
                       .feed_forwards = "-", .state_heads = 12, .state_head_size = 8, .state_size = 16, .state_chunk = 16}},
      {"hybrid-test", {.family = "llama", .layers = 4, .hidden = 48, .heads = 12, .kv_heads = 4, .ffn = 144, .vocab_size = 512,
                       .max_seq_len = 64, .tied = false, .mixers = "MWMA", .feed_forwards = "D", .window = 24, .state_heads = 12,
                       .state_head_size = 8, .state_size = 16, .state_groups = 2, .state_chunk = 16}},
      {"hybrid-experts-test", {.family = "llama", .layers = 4, .hidden = 48, .heads = 12, .kv_heads = 4, .ffn = 144, .vocab_size = 512,
                               .max_seq_len = 64, .tied = false, .experts = 8, .experts_per_token = 2, .expert_ffn = 96,
                               .mixers = "MWMA", .feed_forwards = "DE", .window = 24, .state_heads = 12, .state_head_size = 8,
                               .state_size = 16, .state_groups = 2, .state_chunk = 16}},
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

// Of sound letters; where they are not, letter_problems() says so next.
bool needs_heads(const config::ModelSection& section) {
  return section.mixers.value_or("A").find_first_of("AWN") != std::string::npos;
}

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
  if (needs_heads(section)) add("heads", section.heads.has_value(), hidden / head);
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
  model.heads = model.kv_heads = section.heads.value_or(1);
  // A gated layer has three matrices: 8/3 of the hidden size gives it the parameters of gpt2's two at 4.
  model.ffn = model.gated_mlp() ? (8 * model.hidden / 3 + 63) / 64 * 64 : 4 * model.hidden;
  model.max_seq_len = 1024;
  return model;
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
  if (section.feed_forwards) experts.dense_layers = layers_without_experts(*section.feed_forwards, model.layers);
  return experts;
}

// transformers' families take the norm of the output over each group of B and C.
bool norms_by_group(Family family) { return family == Family::kMamba2 || family == Family::kBamba || family == Family::kNemotronH; }

StateSpaceSizes state_space_of(const config::ModelSection& section, Family family, const StateSpaceSizes& base) {
  StateSpaceSizes sizes = base;
  sizes.heads = section.state_heads.value_or(base.heads);
  sizes.head_size = section.state_head_size.value_or(base.head_size);
  sizes.state = section.state_size.value_or(base.state);
  sizes.groups = section.state_groups.value_or(base.groups);
  sizes.convolution = section.state_convolution.value_or(base.convolution);
  sizes.chunk = section.state_chunk.value_or(base.chunk);
  if (norms_by_group(family)) sizes.norm_groups = sizes.groups;
  return sizes;
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

// Which branches the layers have, and what they need. Where none has attention its sizes stand for nothing.
void add_branches(const config::ModelSection& section, const ModelConfig& base, ModelConfig& model) {
  const bool told = section.mixers || section.feed_forwards || section.norm || section.branches;
  model.blocks = told ? blocks_of(section, model.layers) : base.blocks;
  const bool some_windows = section.mixers.value_or("").find('W') != std::string::npos;
  model.sliding_window = some_windows ? 0 : section.window.value_or(0);
  if (lists_kind(model, kStateSpace)) model.state_space = state_space_of(section, model.family, base.state_space);
  if (has_attention(model)) return;
  model.heads = model.kv_heads = 1;
  model.head_size = model.hidden;
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
  add_branches(section, base, model);
  model.experts = experts_of(section, base, model);
  return model;
}

// Null where there is none.
const config::ModelSection* find_preset(const std::string& name) {
  const auto found = std::ranges::find(presets(), name, &Preset::first);
  if (found != presets().end()) return &found->second;
  const OwnPreset* own = own_preset(name);
  return own ? &own->section : nullptr;
}

ModelConfig of_preset(const std::string& name) {
  const config::ModelSection& section = *find_preset(name);
  ModelConfig fields = from_fields(section);
  if (const OwnPreset* own = own_preset(name)) fields.blocks = own->blocks;
  return with_fields(section, fields);
}

// What would replace the blocks of a program's own preset.
std::vector<config::LayoutProblem> problems_beside_blocks(const config::ModelSection& section) {
  std::vector<config::LayoutProblem> problems;
  const OwnPreset* own = own_preset(section.preset);
  if (!own || own->blocks.empty()) return problems;
  const auto beside = [&](const char* key, bool given) {
    if (given)
      problems.push_back({.key = key,
                          .what = cat(key, " beside preset ", section.preset, ", which says the branches of its layers"),
                          .ways = {config::left_out(key)},
                          .depth = kFamilyDepth});
  };
  beside("model.mixers", section.mixers.has_value());
  beside("model.feed_forwards", section.feed_forwards.has_value());
  beside("model.norm", section.norm.has_value());
  beside("model.branches", section.branches.has_value());
  return problems;
}

// With what of the layers' branches the preset says, or a family of state spaces alone.
config::ModelSection with_letters(config::ModelSection section, const config::ModelSection& preset) {
  const bool windows = !section.mixers || section.mixers->find('W') != std::string::npos;
  if (!section.window && windows) section.window = preset.window;
  if (!section.mixers) section.mixers = preset.mixers;
  if (!section.feed_forwards) section.feed_forwards = preset.feed_forwards;
  const std::optional<std::string>& family = section.family ? section.family : preset.family;
  if (family != family_name(Family::kMamba2)) return section;
  if (!section.mixers) section.mixers = "M";
  if (!section.feed_forwards) section.feed_forwards = "-";
  return section;
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
  for (std::string& name : own_preset_names()) names.push_back(std::move(name));
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
  if (!preset.empty() && !find_preset(preset)) return no_such_preset(preset);
  const config::ModelSection none;
  const config::ModelSection& preset_section = preset.empty() ? none : *find_preset(preset);
  const config::ModelSection given = with_letters(section, preset_section);
  const bool has_sizes = given.layers && given.hidden && (given.heads || !needs_heads(given));
  if (preset.empty() && !has_sizes) return no_such_sizes(given);
  if (section.family && !family_of(*section.family)) return no_such_family(section);
  std::vector<config::LayoutProblem> letters = letter_problems(section, given, preset_section);
  for (config::LayoutProblem& problem : problems_beside_blocks(section)) letters.push_back(std::move(problem));
  if (!letters.empty()) return sizes_that_do_not_fit(std::move(letters));
  ModelConfig model = with_fields(given, preset.empty() ? from_fields(given) : of_preset(preset));
  if (model.vocab_size == 0) model.vocab_size = tokenizer_vocab_size;
  if (model.vocab_size == 0) return no_vocabulary(preset);
  model.experts.router_bias = has_router_bias(model, moe);
  std::vector<config::LayoutProblem> problems = contradictions(model, !section.head_size && !model.has_latent() && has_attention(model), with_ways);
  for (config::LayoutProblem& problem : problems_of_branches(section, model)) problems.push_back(std::move(problem));
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

}  // namespace lockstep::arch

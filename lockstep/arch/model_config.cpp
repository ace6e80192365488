#include "lockstep/arch/model_config.h"

#include <array>
#include <cstdio>
#include <optional>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/check.h"

namespace lockstep::arch {
namespace {

struct Preset {
  std::string_view name;
  ModelConfig model;
};

// The test models are as small as they can be and still be cut into 1, 2, 3 or 4 parts. gpt2-10m has 10.4M parameters
// with a vocabulary of 8192, which is that of the tokenizer. gpt-100b has GPT-3's shape.
// clang-format off
constexpr Preset kPresets[] = {
    {"gpt2-10m", {.family = Family::kGpt2, .layers = 4, .hidden = 384, .heads = 12, .kv_heads = 12, .head_size = 32,
                  .ffn = 1536, .vocab_size = 0, .max_seq_len = 512}},
    {"gpt2-124m", {.family = Family::kGpt2, .layers = 12, .hidden = 768, .heads = 12, .kv_heads = 12, .head_size = 64,
                   .ffn = 3072, .vocab_size = 50257, .max_seq_len = 1024}},
    {"gpt2-1.5b", {.family = Family::kGpt2, .layers = 48, .hidden = 1600, .heads = 25, .kv_heads = 25, .head_size = 64,
                   .ffn = 6400, .vocab_size = 50257, .max_seq_len = 1024}},
    {"gpt-100b", {.family = Family::kGpt2, .layers = 90, .hidden = 9600, .heads = 80, .kv_heads = 80, .head_size = 120,
                  .ffn = 38400, .vocab_size = 50257, .max_seq_len = 2048}},
    {"gpt2-test", {.family = Family::kGpt2, .layers = 2, .hidden = 48, .heads = 12, .kv_heads = 12, .head_size = 4,
                   .ffn = 192, .vocab_size = 512, .max_seq_len = 64}},
    {"llama-15m", {.family = Family::kLlama, .layers = 6, .hidden = 288, .heads = 6, .kv_heads = 6, .head_size = 48,
                   .ffn = 768, .vocab_size = 32000, .max_seq_len = 256}},
    {"llama3-8b", {.family = Family::kLlama, .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_size = 128,
                   .ffn = 14336, .vocab_size = 128256, .max_seq_len = 8192, .tied = false, .rope_theta = 500000}},
    {"llama-test", {.family = Family::kLlama, .layers = 3, .hidden = 48, .heads = 12, .kv_heads = 4, .head_size = 4,
                    .ffn = 144, .vocab_size = 512, .max_seq_len = 64, .tied = false}},
};
// clang-format on
constexpr std::string_view kDefaultPreset = "gpt2-10m";
constexpr double kMaxParameters = 1e15;  // beyond it offsets in bytes would leave 64 bits

const ModelConfig& find_preset(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.model;
  }
  const std::string near = nearest(name, preset_names());
  throw ConfigError(
      {.code = "LS1111",
       .what = cat("no model preset '", name, "'"),
       .way_out = near.empty() ? cat("one of ", join(preset_names(), ", ")) : cat("did you mean '", near, "'?")});
}

Family parse_family(const std::string& name) {
  if (const std::optional<Family> family = family_of(name)) return *family;
  std::vector<std::string> names;
  for (const FamilyTraits& traits : kFamilies) names.emplace_back(traits.name);
  throw ConfigError(
      {.code = "LS1112", .what = cat("model.family = \"", name, "\""), .way_out = cat("one of ", join(names, ", "))});
}

// The family with the flags that are its own.
void set_family(Family family, ModelConfig& model) {
  const FamilyTraits& traits = family_traits(family);
  model.family = family;
  model.qkv_bias = traits.qkv_bias;
  model.out_bias = traits.out_bias;
  model.mlp_bias = traits.mlp_bias;
  model.qk_norm = traits.qk_norm;
}

// A model described by its fields alone: whoever names one of these sizes names them all.
bool has_own_sizes(const config::ModelSection& section) {
  return section.family || section.layers || section.hidden || section.heads;
}

ModelConfig from_fields(const config::ModelSection& section) {
  std::vector<std::string> missing;
  if (!section.layers) missing.push_back("layers");
  if (!section.hidden) missing.push_back("hidden");
  if (!section.heads) missing.push_back("heads");
  if (!missing.empty()) {
    throw ConfigError({.code = "LS1113",
                       .what = cat("[model] without a preset needs ", join(missing, ", "), " as well"),
                       .way_out = cat("give them, or a preset to start from: ", join(preset_names(), ", "))});
  }
  ModelConfig model;
  set_family(section.family ? parse_family(*section.family) : Family::kGpt2, model);
  model.hidden = *section.hidden;
  model.heads = model.kv_heads = *section.heads;
  // A gated layer has three matrices: 8/3 of the hidden size gives it the parameters of gpt2's two at 4.
  model.ffn = model.traits().gated_mlp ? (8 * model.hidden / 3 + 63) / 64 * 64 : 4 * model.hidden;
  model.max_seq_len = 1024;
  return model;
}

// The user's fields over `model`. Sizes that follow from a changed one are derived again unless they are given too.
void apply_fields(const config::ModelSection& section, ModelConfig& model) {
  const ModelConfig base = model;
  if (section.family && *section.family != family_name(base.family)) set_family(parse_family(*section.family), model);
  model.layers = section.layers.value_or(base.layers);
  model.hidden = section.hidden.value_or(base.hidden);
  model.heads = section.heads.value_or(base.heads);
  model.kv_heads = section.kv_heads.value_or(base.kv_heads == base.heads ? model.heads : base.kv_heads);
  const bool same_head = model.hidden == base.hidden && model.heads == base.heads && base.head_size > 0;
  model.head_size = section.head_size.value_or(same_head ? base.head_size : model.hidden / model.heads);
  const bool same_hidden = model.hidden == base.hidden;
  model.ffn = section.ffn.value_or(same_hidden ? base.ffn : base.ffn * model.hidden / base.hidden);
  model.vocab_size = section.vocab_size.value_or(base.vocab_size);
  model.max_seq_len = section.max_seq_len.value_or(base.max_seq_len);
  model.tied = section.tied.value_or(base.tied);
  model.norm_eps = section.norm_eps.value_or(base.norm_eps);
  model.rope_theta = section.rope_theta.value_or(base.rope_theta);
  model.dropout = section.dropout.value_or(base.dropout);
}

[[noreturn]] void refuse(const std::vector<std::string>& problems) {
  throw ConfigError({.code = "LS1110", .what = cat("[model] these sizes do not fit:\n  ", join(problems, "\n  "))});
}

// Before anything is computed with them: products of two fit into 64 bits.
void check_sizes(const config::ModelSection& section) {
  std::vector<std::string> problems;
  const auto expect = [&](const char* name, std::optional<int64_t> size, int64_t most = int64_t{1} << 31) {
    if (size && (*size < 1 || *size > most)) problems.push_back(cat(name, "(", *size, ") is not within 1 to ", most));
  };
  expect("layers", section.layers, 1 << 16);
  expect("hidden", section.hidden);
  expect("heads", section.heads);
  expect("kv_heads", section.kv_heads);
  expect("head_size", section.head_size);
  expect("ffn", section.ffn);
  expect("vocab_size", section.vocab_size);
  expect("max_seq_len", section.max_seq_len);
  if (!problems.empty()) refuse(problems);
}

std::string remainder_text(const char* what, int64_t a, const char* by, int64_t b) {
  return cat(what, "(", a, ") % ", by, "(", b, ") = ", a % b);
}

// An upper bound of the model's parameters, in numbers that do not overflow.
double rough_parameters(const ModelConfig& model) {
  const auto number = [](int64_t size) { return static_cast<double>(size); };
  const double attention = 2 * number(model.head_size) * (number(model.heads) + number(model.kv_heads));
  const double block = number(model.hidden) * (attention + 3 * number(model.ffn));
  return number(model.layers) * block +
         number(model.hidden) * (2 * number(model.vocab_size) + number(model.max_seq_len));
}

}  // namespace

std::optional<Family> family_of(std::string_view name) {
  for (const FamilyTraits& traits : kFamilies) {
    if (name == traits.name) return traits.family;
  }
  return std::nullopt;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

std::vector<std::string> size_problems(const ModelConfig& model) {
  std::vector<std::string> problems;
  const auto expect = [&](bool holds, std::string text) {
    if (!holds) problems.push_back(std::move(text));
  };
  expect(model.heads % model.kv_heads == 0, remainder_text("heads", model.heads, "kv_heads", model.kv_heads));
  expect(model.head_size >= 1, cat("hidden(", model.hidden, ") < heads(", model.heads, ")"));
  if (model.traits().learned_positions) {
    expect(model.kv_heads == model.heads,
           cat("kv_heads(", model.kv_heads, ") != heads(", model.heads, "): ", family_name(model.family),
               " has no grouped-query attention"));
  } else {
    expect(model.head_size % 2 == 0, cat("head_size(", model.head_size, ") is odd: rotary positions turn pairs"));
  }
  expect(model.dropout >= 0 && model.dropout < 1, cat("dropout(", number_text(model.dropout), ") is not in [0, 1)"));
  expect(rough_parameters(model) < kMaxParameters, cat("about ", rough_parameters(model), " parameters are too many"));
  return problems;
}

ModelConfig resolve_model(const config::ModelSection& section, int64_t tokenizer_vocab_size) {
  check_sizes(section);
  if (!section.from.empty()) return resolve_hf_model(section);
  const bool from_preset = !section.preset.empty() || !has_own_sizes(section);
  const std::string preset = section.preset.empty() ? std::string(kDefaultPreset) : section.preset;
  ModelConfig model = from_preset ? find_preset(preset) : from_fields(section);
  apply_fields(section, model);
  if (model.vocab_size == 0) model.vocab_size = tokenizer_vocab_size;
  if (model.vocab_size == 0) {
    throw ConfigError({.code = "LS1114",
                       .what = cat("the vocabulary size of the model is unknown: ",
                                   from_preset ? cat("preset ", preset, " takes it") : "it is taken",
                                   " from the tokenizer, and none is given"),
                       .way_out = "set data.tokenizer, or model.vocab_size"});
  }
  std::vector<std::string> problems = size_problems(model);
  if (!section.head_size && model.hidden % model.heads != 0)
    problems.insert(problems.begin(), cat(remainder_text("hidden", model.hidden, "heads", model.heads),
                                          "; set head_size where they differ"));
  if (!problems.empty()) refuse(problems);
  return model;
}

std::string describe(const ModelConfig& model) {
  const double parameters = static_cast<double>(num_parameters(model));
  std::array<char, 32> count{};
  std::snprintf(count.data(), count.size(), parameters < 1e9 ? "%.1fM" : "%.2fB",
                parameters / (parameters < 1e9 ? 1e6 : 1e9));
  return cat(family_name(model.family), " ", model.layers, " x ", model.hidden, ", ", model.heads, " heads",
             model.kv_heads == model.heads ? "" : cat(" (", model.kv_heads, " kv)"), ", ffn ", model.ffn, ", vocab ",
             model.vocab_size, ", ", count.data(), " parameters");
}

}  // namespace lockstep::arch

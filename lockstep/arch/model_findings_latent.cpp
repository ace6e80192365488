// What in a model's latent attention contradicts itself, or the rest of it.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/arch/model_findings.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check_parts.h"

namespace lockstep::arch {
namespace {

using config::LayoutProblem;
using config::left_out;
using config::Suggestion;
using config::values_of;

const char* const kLatentKey = "model.kv_lora_rank";

Suggestion without_latent() {
  Suggestion without{.changes = {}, .text = "leave out all keys of latent attention"};
  visit_latent_sizes(config::ModelSection(), [&](const char* name, std::optional<int64_t>) {
    without.changes.push_back({.key = cat("model.", name)});
  });
  return without;
}

}  // namespace

std::vector<LayoutProblem> latent_contradictions(const ModelConfig& model, bool with_ways) {
  std::vector<LayoutProblem> problems;
  if (!model.has_latent()) return problems;
  const auto expect = [&](bool holds, const std::string& key, std::string what, std::vector<Suggestion> ways) {
    if (holds) return;
    problems.push_back({.key = key, .what = std::move(what), .depth = kSizesDepth});
    if (with_ways) problems.back().ways = std::move(ways);
  };
  const LatentSizes& latent = model.latent;
  visit_latent_sizes(model, [&](const char* name, int64_t size) {
    const int64_t most = most_of_size(name);
    const std::string key = cat("model.", name);
    const std::string what = size == 0 ? cat("latent attention needs ", key, " as well") : cat(name, "(", size, ") is not within 1 to ", most);
    expect(size >= 1 && size <= most, key, what, {without_latent()});
  });
  if (!problems.empty()) return problems;
  expect(latent.rope % 2 == 0, "model.qk_rope_head_dim", cat("qk_rope_head_dim(", latent.rope, ") is odd: rotary positions turn pairs"),
         values_of("model.qk_rope_head_dim", {cat(latent.rope + 1)}));
  expect(!model.traits().learned_positions && !model.traits().layer_norm, kLatentKey,
         cat("latent attention has rotary positions and RMSNorm, but family ", family_name(model.family), " has neither"),
         values_of("model.family", {"deepseek_v3", "llama"}) + std::vector{without_latent()});
  expect(model.head_size == latent.head(), "model.head_size",
         cat("head_size(", model.head_size, ") is not qk_nope_head_dim(", latent.nope, ") + qk_rope_head_dim(", latent.rope, ")"),
         {left_out("model.head_size")});
  expect(model.kv_heads == model.heads, "model.kv_heads",
         cat("kv_heads(", model.kv_heads, ") != heads(", model.heads, "): every head of latent attention has keys and values of its own"),
         {left_out("model.kv_heads")});
  expect(!model.qk_norm && !model.qkv_bias && !model.out_bias, kLatentKey,
         cat("latent attention has no norm of heads and no bias, but family ", family_name(model.family), " has"),
         values_of("model.family", {"deepseek_v3", "llama"}) + std::vector{without_latent()});
  return problems;
}

std::vector<LayoutProblem> problems_without_latent(const config::ModelSection& section, const ModelConfig& model) {
  std::vector<LayoutProblem> problems;
  if (model.has_latent()) return problems;
  if (model.traits().latent)
    problems.push_back({.key = kLatentKey,
                        .what = cat("family ", family_name(model.family), " has latent attention, but model.kv_lora_rank is not given"),
                        .ways = values_of("model.family", {"mixtral", "llama"}),
                        .depth = kSizesDepth});
  visit_latent_sizes(section, [&](const char* name, std::optional<int64_t> size) {
    const std::string key = cat("model.", name);
    if (size)
      problems.push_back({.key = key,
                          .what = cat(key, " is of latent attention, but model.kv_lora_rank is not given"),
                          .ways = {left_out(key)},
                          .depth = kSizesDepth});
  });
  return problems;
}

}  // namespace lockstep::arch

// Attention, the MLP and experts as layers that run, and the registry.
#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/mesh/placement.h"
#include "lockstep/model/parts.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/experts.h"
#include "lockstep/nn/latent_attention.h"
#include "lockstep/nn/mlp.h"
#include "lockstep/nn/multiplied_linear.h"
#include "lockstep/nn/whole_norm.h"

namespace lockstep::model {
namespace {

std::unique_ptr<nn::QueryKeyNorm> query_key_norm(PartsBuilder& parts, const BranchPlace& place) {
  const arch::ModelConfig& model = parts.model();
  if (!model.qk_norm) return nullptr;
  const nn::Parameter q = parts.parameter(place, "q_norm.weight"), k = parts.parameter(place, "k_norm.weight");
  const bool plus_one = model.traits().norm_plus_one;
  if (!model.traits().whole_qk_norm) return std::make_unique<nn::HeadNorm>(q, k, model.norm_eps, plus_one);
  return std::make_unique<nn::WholeNorm>(q, k,
                                         nn::WholeNorm::Options{.q_width = model.heads * model.head_size,
                                                                .k_width = model.kv_heads * model.head_size,
                                                                .key_copies = std::max<int64_t>(1, parts.tensor_size() / model.kv_heads),
                                                                .eps = model.norm_eps,
                                                                .plus_one = plus_one},
                                         parts.row_sums(place, "qk_norm"));
}

std::unique_ptr<nn::Branch> attention(PartsBuilder& parts, const BranchPlace& place) {
  const arch::ModelConfig& model = parts.model();
  const int64_t ranks = parts.tensor_size();
  const nn::Attention::Shape shape{.heads = model.heads / ranks,
                                   .kv_heads = std::max<int64_t>(1, model.kv_heads / ranks),
                                   .head_size = model.head_size,
                                   .window = model.window_of(place.spec),
                                   .scale = model.attention_scale};
  // What goes into the branch, and what comes out of it, as of q, k and v: a number for a number but for rounding.
  const arch::Multipliers& by = model.multipliers;
  std::unique_ptr<nn::Linear> qkv = nn::multiplied(parts.first_linear(place), {{shape.heads * shape.head_size, by.attention_in},
                                                                               {shape.kv_heads * shape.head_size, by.attention_in * by.key},
                                                                               {shape.kv_heads * shape.head_size, by.attention_in * by.attention_out}});
  return std::make_unique<nn::Attention>(shape, std::move(qkv), parts.rotary(place), parts.last_linear(place),
                                         query_key_norm(parts, place), parts.context_attention(place),
                                         model.attention_sinks ? parts.parameter(place, "sinks.weight") : nn::Parameter());
}

// Whole on every rank: `down` and the norms of latents. Cut by heads: what makes queries, keys and values of them, and the output.
std::unique_ptr<nn::Branch> latent_attention(PartsBuilder& parts, const BranchPlace& place) {
  const arch::ModelConfig& model = parts.model();
  const auto norm = [&](std::string_view name) { return nn::RmsNorm(parts.parameter(place, name), arch::kLatentNormEps); };
  const nn::LatentAttention::Shape shape{
      .sizes = model.latent, .heads = model.heads / parts.tensor_size(), .scale = arch::latent_score_scale(model), .window = model.window_of(place.spec)};
  std::unique_ptr<nn::ContextAttention> context = parts.context_attention(place);
  const bool travel = context && context->moves_sources();
  return std::make_unique<nn::LatentAttention>(
      shape, nn::LatentAttention::Parts{.down = std::make_unique<nn::Linear>(parts.parameter(place, "qkv_a.weight")),
                                        .q_norm = norm("q_a_norm.weight"),
                                        .kv_norm = norm("kv_a_norm.weight"),
                                        .q_up = parts.column_linear(place, "q_b"),
                                        .kv_up = travel ? std::make_unique<nn::Linear>(parts.parameter(place, "kv_b.weight"))
                                                        : parts.column_linear(place, "kv_b"),
                                        .kv_weight = parts.parameter(place, "kv_b.weight").value,
                                        .out = parts.row_linear(place, "out"),
                                        .rotary = parts.rotary(place).value(),
                                        .keys = parts.shared_rows(place, "k_rope"),
                                        .context = std::move(context),
                                        .latents = travel ? parts.shared_rows(place, "kv_b") : nullptr});
}

std::unique_ptr<nn::Branch> mlp(PartsBuilder& parts, const BranchPlace& place) {
  const arch::ModelConfig& model = parts.model();
  std::unique_ptr<nn::Linear> first = parts.first_linear(place);
  if (model.gated_mlp()) {
    const int64_t width = mesh::shard_range(model.ffn, parts.tensor_size(), parts.tensor_rank()).size();
    first = nn::multiplied(std::move(first), {{width, model.multipliers.gate}, {width, model.multipliers.down}});  // gate | up
  }
  return std::make_unique<nn::Mlp>(std::move(first), nn::new_activation(model.activation), parts.last_linear(place));
}

// An MLP that every token passes, beside those that it is sent to.
std::unique_ptr<nn::Mlp> shared_expert(PartsBuilder& parts, const BranchPlace& place) {
  if (parts.model().experts.shared == 0) return nullptr;
  return std::make_unique<nn::Mlp>(parts.column_linear(place, "shared.gate_up"), std::make_unique<nn::SwiGlu>(),
                                   parts.row_linear(place, "shared.down"));
}

std::unique_ptr<nn::Branch> experts(PartsBuilder& parts, const BranchPlace& place) {
  const arch::ExpertSizes& sizes = parts.model().experts;
  nn::ExpertParameters parameters{.router_weight = parts.parameter(place, "router.weight"),
                                  .router_bias = sizes.router_bias ? parts.parameter(place, "router.bias") : nn::Parameter(),
                                  .gate_up = parts.parameter(place, "gate_up.weight"),
                                  .down = parts.parameter(place, "down.weight")};
  if (sizes.logit_bias) parameters.logit_bias = parts.parameter(place, "logits.bias");
  if (sizes.biases) parameters.gate_up_bias = parts.parameter(place, "gate_up.bias"), parameters.down_bias = parts.parameter(place, "down.bias");
  return std::make_unique<nn::Experts>(nn::ExpertShape{.sizes = sizes, .moe = parts.moe()}, std::move(parameters),
                                       shared_expert(parts, place), parts.expert_exchange(place));
}

std::map<std::string_view, BranchMaker>& makers() {
  static std::map<std::string_view, BranchMaker> all = {
      {"attention", attention}, {arch::kLatentAttention, latent_attention}, {"mlp", mlp}, {"experts", experts},
      {arch::kStateSpace, make_state_space}};
  return all;
}

}  // namespace

void add_branch_maker(std::string_view kind, BranchMaker maker) {
  LOCKSTEP_CHECK(makers().emplace(kind, maker).second, "two makers of branches named ", kind);
}

BranchMaker branch_maker(std::string_view kind) {
  const auto found = makers().find(kind);
  LOCKSTEP_CHECK(found != makers().end(), "no maker of branches named ", kind);
  return found->second;
}

}  // namespace lockstep::model

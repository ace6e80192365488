#include "lockstep/arch/hf_shape.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/arch/hf_reading.h"

namespace lockstep::arch {
namespace {

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh: return "gelu_new";
    case Activation::kGelu: return "gelu";
    case Activation::kRelu2: return "relu2";
    case Activation::kSwiGlu: return "silu";
    case Activation::kGeGlu: return "gelu_pytorch_tanh";
  }
  return "";
}

Json yarn_json(const RopeScaling& scaling) {
  Json json = {{"rope_type", "yarn"},
               {"factor", scaling.factor},
               {"original_max_position_embeddings", scaling.original_max_position_embeddings},
               {"beta_fast", scaling.beta_fast},
               {"beta_slow", scaling.beta_slow}};
  if (scaling.mscale > 0) json["mscale"] = scaling.mscale;
  if (scaling.mscale_all_dim > 0) json["mscale_all_dim"] = scaling.mscale_all_dim;
  if (scaling.attention_factor > 0) json["attention_factor"] = scaling.attention_factor;
  if (!scaling.truncate) json["truncate"] = false;
  return json;
}

Json scaling_json(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kNone) return nullptr;
  if (scaling.kind == RopeScaling::Kind::kLinear) return {{"rope_type", "linear"}, {"factor", scaling.factor}};
  if (scaling.kind == RopeScaling::Kind::kYarn) return yarn_json(scaling);
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
}

Json parameters_json(const RopeScaling& scaling, double theta) {
  Json rope = scaling_json(scaling);
  if (rope.is_null()) rope = {{"rope_type", "default"}};
  rope["rope_theta"] = theta;
  return rope;
}

// Of a head, what turns: multiplied by the head's size and cut to whole numbers, it gives the size again.
double rotary_factor(const ModelConfig& m) {
  const auto size = static_cast<double>(m.head_size), rotated = static_cast<double>(m.rotated());
  double factor = rotated / size;
  while (std::floor(size * factor) < rotated) factor = std::nextafter(factor, 1.0);
  return factor;
}

Json experts_json(const ModelConfig& m) {
  const HfExperts& theirs = hf_family(m.family).experts;
  Json json = {{theirs.count, m.experts.count}, {"num_experts_per_tok", m.experts.per_token}};
  json[theirs.ffn ? theirs.ffn : hf_family(m.family).ffn] = m.experts.ffn;
  if (theirs.sigmoid) {
    json["n_group"] = m.experts.groups;
    json["topk_group"] = m.experts.top_groups;
    json["routed_scaling_factor"] = m.experts.routed_scale;
    json["n_shared_experts"] = m.experts.shared;
    json["first_k_dense_replace"] = m.experts.dense_layers.size();
    json["norm_topk_prob"] = true;
  }
  if (theirs.clamped) json["swiglu_limit"] = m.experts.clamp;
  if (theirs.norm_key) json["norm_topk_prob"] = m.experts.router == config::Router::kSoftmaxAfterTopk;
  if (theirs.dense_layers) {
    json["mlp_only_layers"] = m.experts.dense_layers;
    json["decoder_sparse_step"] = 1;
  }
  return json;
}

Json latent_json(const LatentSizes& latent) {
  return {{"q_lora_rank", latent.q_rank},       {"kv_lora_rank", latent.kv_rank},
          {"qk_nope_head_dim", latent.nope},    {"qk_rope_head_dim", latent.rope},
          {"qk_head_dim", latent.head()},       {"v_head_dim", latent.value},
          {"rope_interleave", latent.interleaved}};
}

Json state_space_json(const ModelConfig& m) {
  const HfStateSpace& theirs = hf_family(m.family).state_space;
  const StateSpaceSizes& s = m.state_space;
  Json json = {{theirs.heads, s.heads},
               {theirs.head_size, s.head_size},
               {theirs.groups, s.groups},
               {theirs.state, s.state},
               {theirs.convolution, s.convolution},
               {theirs.chunk, s.chunk},
               {theirs.convolution_bias, s.convolution_bias},
               {theirs.projection_bias, s.projection_bias},
               {theirs.activation, "silu"}};
  const bool endless = s.step_most == 0 || s.step_most >= kNoStepLimit;
  if (theirs.norm) json[theirs.norm] = s.norm_groups > 0, json["mamba_norm_before_gate"] = false;
  if (theirs.inner) json[theirs.inner] = s.inner(), json["projectors_bias"] = s.projection_bias;
  if (!theirs.expand && !theirs.inner) {
    json["time_step_min"] = s.step_least;
    return json;
  }
  if (theirs.expand) json[theirs.expand] = s.inner() / m.hidden;
  json["time_step_limit"] = {s.step_least, endless ? Json{{"__float__", "Infinity"}} : Json(s.step_most)};
  return json;
}

Json multipliers_json(const ModelConfig& m) {
  const Multipliers& by = m.multipliers;
  return {{"embedding_multiplier", m.embedding_scale},
          {"lm_head_multiplier", by.logits},
          {"attention_in_multiplier", by.attention_in},
          {"key_multiplier", by.key},
          {"attention_out_multiplier", by.attention_out},
          {"ssm_in_multiplier", by.state_in},
          {"ssm_multipliers", {by.z, by.x, by.b, by.c, by.dt}},
          {"ssm_out_multiplier", by.state_out},
          {"mlp_multipliers", {by.gate, by.down}}};
}

int64_t longest_window(const std::vector<BlockSpec>& layers) {
  int64_t window = 0;
  for (const BlockSpec& layer : layers)
    for (const Branch& branch : layer) window = std::max(window, branch.window.value_or(0));
  return window;
}

void add_windows(const ModelConfig& m, const std::vector<BlockSpec>& layers, Json& json) {
  const HfFamily& family = hf_family(m.family);
  if (!family.default_window) return;
  const int64_t window = longest_window(layers);
  json["sliding_window"] = window > 0 ? Json(window) : Json();
  if (family.window == HfWindow::kEvery) return;
  if (family.window == HfWindow::kByKind) {
    json["layer_types"] = attention_kinds(layers);
    if (window == 0) json["sliding_window"] = *family.default_window;  // of no layer, but its class wants one
    return;
  }
  json["use_sliding_window"] = window > 0;
  if (window > 0 && family.window != HfWindow::kFlagged) json["layer_types"] = attention_kinds(layers);
}

std::string_view kind_of(const Branch& branch) {
  if (branch.kind == kStateSpace) return "linear_attention";
  return branch.kind == "attention" ? "full_attention" : "mlp";
}

void add_layers(const ModelConfig& m, Json& json) {
  const std::vector<BlockSpec> layers = layer_blocks(m);
  add_windows(m, layers, json);
  const auto any = [](const BlockSpec& layer, const auto& holds) { return std::ranges::any_of(layer, holds); };
  const auto beside = [](const Branch& branch) { return branch.beside; };
  const auto attends = [](const Branch& branch) { return branch.kind == "attention"; };
  const auto still = [](const Branch& branch) { return branch.rotation == Rotation::kNone; };
  switch (hf_family(m.family).blocks) {
    case HfBlocks::kParallel:
      json["use_parallel_residual"] = std::ranges::all_of(layers, [&](const BlockSpec& layer) { return any(layer, beside); });
      break;
    case HfBlocks::kListed:
      json["attn_layer_indices"] = Json::array();
      for (size_t i = 0; i < layers.size(); ++i)
        if (any(layers[i], attends)) json["attn_layer_indices"].push_back(i);
      break;
    case HfBlocks::kOne:
      json["layers_block_type"] = Json::array();
      for (const BlockSpec& layer : layers) json["layers_block_type"].push_back(layer.empty() ? "" : kind_of(layer.front()));
      break;
    default:
      break;
  }
  if (hf_family(m.family).window != HfWindow::kWithoutRope) return;
  json["no_rope_layers"] = Json::array();
  for (const BlockSpec& layer : layers) json["no_rope_layers"].push_back(any(layer, still) ? 0 : 1);
}

}  // namespace

Json hf_shape_json(const ModelConfig& m) {
  const HfFamily& family = hf_family(m.family);
  Json json = {{"model_type", family_name(m.family)},
               {family.hidden, m.hidden},
               {family.norm_eps, m.norm_eps},
               {"vocab_size", m.vocab_size},
               {"tie_word_embeddings", m.tied}};
  if (family.layers) json[family.layers] = m.layers;
  if (family.heads) json[family.heads] = m.heads;
  if (family.ffn) json[family.ffn] = m.ffn;
  if (family.heads && !family.plain_heads) {
    json["num_key_value_heads"] = m.kv_heads;
    json["head_dim"] = m.has_latent() ? m.latent.rope : m.head_size;
  }
  if (family.activation) json[family.activation] = activation_name(m.activation);
  if (m.has_latent()) json.update(latent_json(m.latent));
  if (family.attention_bias_key) json["attention_bias"] = m.qkv_bias;
  if (family.mlp_bias_key) json["mlp_bias"] = m.mlp_bias;
  if (family.experts.count) json.update(experts_json(m));
  if (family.state_space.heads) json.update(state_space_json(m));
  if (family.multipliers) json.update(multipliers_json(m));
  if (m.family == Family::kGemma3)
    json["query_pre_attn_scalar"] = m.attention_scale > 0 ? std::llround(1 / (m.attention_scale * m.attention_scale)) : m.head_size;
  add_layers(m, json);
  return json;
}

void set_hf_rope(const ModelConfig& m, Json& json) {
  const HfFamily& family = hf_family(m.family);
  if (family.rope == HfRope::kNone) return;
  if (family.rope == HfRope::kByKind) {
    const double local = m.rope_local_theta > 0 ? m.rope_local_theta : m.rope_theta;
    json["rope_parameters"] = {{"full_attention", parameters_json(m.rope_scaling, m.rope_theta)},
                               {"sliding_attention", parameters_json({}, local)}};
    json.erase("rope_scaling");
    return;
  }
  if (!json.contains("rope_parameters") && !family.writes_rope_parameters) {
    json["rope_theta"] = m.rope_theta;
    json["rope_scaling"] = scaling_json(m.rope_scaling);
    return;
  }
  Json rope = parameters_json(m.rope_scaling, m.rope_theta);
  if (family.partial_rotation) rope["partial_rotary_factor"] = rotary_factor(m);
  json["rope_parameters"] = std::move(rope);
  json.erase("rope_scaling");
}

}  // namespace lockstep::arch

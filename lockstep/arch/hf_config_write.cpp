#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/hf_config_families.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::arch {
namespace {

using Expect = std::function<void(bool holds, std::string text)>;

void require_experts(const ModelConfig& m, const Expect& expect) {
  const HfExperts& theirs = hf_family(m.family).experts;
  const ExpertSizes& sizes = m.experts;
  expect((theirs.count != nullptr) == m.has_experts(), theirs.count ? "no experts" : "experts");
  if (!theirs.count || !m.has_experts()) return;
  if (theirs.sigmoid) {
    expect(sizes.router == config::Router::kSigmoid, cat("the router ", config::name_of(sizes.router)));
    expect(sizes.shared > 0, "no shared expert");
    const bool first = sizes.dense_layers.empty() || sizes.dense_layers.back() + 1 == std::ssize(sizes.dense_layers);
    expect(first, "layers without experts that are not the first");
    expect(sizes.groups == 1 || sizes.count / sizes.groups > 1, "groups of one expert");
    return;
  }
  const bool softmax = sizes.router == config::Router::kSoftmaxAfterTopk || (theirs.norm_key && sizes.router == config::Router::kSoftmax);
  expect(softmax, cat("the router ", config::name_of(sizes.router)));
  expect(!sizes.router_bias, "a bias of the router (moe.balance = \"bias\")");
  expect(sizes.groups == 1, "groups of experts");
  expect(sizes.routed_scale == 1, "routed_scale");
  expect(sizes.shared == 0, "shared experts");
  if (!theirs.dense_layers) expect(sizes.dense_layers.empty(), "layers without experts");
}

// LS1123 with what of the model no key of its family can say.
void require_writable(const ModelConfig& m) {
  const HfFamily& family = hf_family(m.family);
  const FamilyTraits& traits = m.traits();
  std::vector<std::string> problems;
  const Expect expect = [&](bool holds, std::string text) {
    if (!holds) problems.push_back(std::move(text));
  };
  if (traits.learned_positions)
    expect(m.heads * m.head_size == m.hidden,
           cat("heads(", m.heads, ") x head_size(", m.head_size, ") is not hidden(", m.hidden, ")"));
  if (family.attention_bias_key)
    expect(m.qkv_bias == m.out_bias, "biases of q, k, v and of attention's output only together");
  else
    expect(m.qkv_bias == traits.qkv_bias && m.out_bias == traits.out_bias, "other biases of attention than the family's");
  if (!family.mlp_bias_key) expect(m.mlp_bias == traits.mlp_bias, "other biases of the MLP than the family's");
  expect(m.qk_norm == traits.qk_norm, "norms of q and k");
  expect(m.has_latent() == traits.latent, traits.latent ? "no latent attention" : "latent attention");
  expect(m.blocks.empty(), "blocks other than attention and then an MLP, each behind its norm");
  if (traits.learned_positions) expect(m.rope_scaling == RopeScaling{}, "rope scaling");
  require_experts(m, expect);
  if (family.window == HfWindow::kByLayer || !family.default_window)
    expect(m.sliding_window == 0, "sliding_window: which layers slide is only in the config.json it came from");
  if (!problems.empty())
    throw ConfigError({.code = "LS1123", .what = cat("transformers' ", family.language_model, " cannot be this model:\n  ",
                                                     join(problems, "\n  "))});
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

// The keys that say the shape of the model; rotary parameters apart.
Json shape_json(const ModelConfig& m) {
  const HfFamily& family = hf_family(m.family);
  Json json = {{"model_type", family_name(m.family)},
               {family.hidden, m.hidden},
               {family.layers, m.layers},
               {family.heads, m.heads},
               {family.ffn, m.ffn},
               {family.norm_eps, m.norm_eps},
               {"vocab_size", m.vocab_size},
               {"tie_word_embeddings", m.tied}};
  if (m.traits().learned_positions) return json;
  json["num_key_value_heads"] = m.kv_heads;
  json["head_dim"] = m.has_latent() ? m.latent.rope : m.head_size;
  if (m.has_latent()) json.update(latent_json(m.latent));
  if (family.attention_bias_key) json["attention_bias"] = m.qkv_bias;
  if (family.mlp_bias_key) json["mlp_bias"] = m.mlp_bias;
  if (family.experts.count) json.update(experts_json(m));
  return json;
}

// In the spelling that the file has.
void set_rope(const ModelConfig& m, Json& json) {
  if (!json.contains("rope_parameters")) {
    json["rope_theta"] = m.rope_theta;
    json["rope_scaling"] = scaling_json(m.rope_scaling);
    return;
  }
  Json rope = scaling_json(m.rope_scaling);
  if (rope.is_null()) rope = {{"rope_type", "default"}};
  rope["rope_theta"] = m.rope_theta;
  json["rope_parameters"] = std::move(rope);
  json.erase("rope_scaling");
}

// None are exported, and a missing key means one.
void set_no_further_layers(const ModelConfig& m, Json& json) {
  if (m.has_latent()) json[kFurtherLayersKey] = 0;
}

Json new_config(const ModelConfig& m) {
  require_writable(m);
  const HfFamily& family = hf_family(m.family);
  Json json = shape_json(m);
  json["architectures"] = Json::array({family.language_model});
  json[family.positions] = m.max_seq_len;
  json["bos_token_id"] = json["eos_token_id"] = nullptr;  // those of the class would be other tokens here
  if (m.traits().learned_positions) {
    json["activation_function"] = "gelu_new";
    json["resid_pdrop"] = json["embd_pdrop"] = m.dropout;
    json["attn_pdrop"] = 0.0;
    return json;
  }
  set_no_further_layers(m, json);
  json["hidden_act"] = "silu";
  json["attention_dropout"] = 0.0;
  set_rope(m, json);
  if (family.window != HfWindow::kEvery) json["use_sliding_window"] = m.sliding_window > 0;
  if (family.default_window) json["sliding_window"] = m.sliding_window > 0 ? Json(m.sliding_window) : Json();
  return json;
}

}  // namespace

Json hf_config_json(const ModelConfig& model, const Json* original) {
  if (!original) return new_config(model);
  const ModelConfig was = parse_hf_config(*original, nullptr, "the original config.json").model;
  if (was.family != model.family)
    throw ConfigError({.code = "LS1123", .what = cat("a ", family_name(model.family), " model with the config.json of a ",
                                                     family_name(was.family))});
  ModelConfig without_window = model;  // the original has it
  without_window.sliding_window = 0;
  require_writable(without_window);
  Json json = *original;
  const Json old_shape = shape_json(was), shape = shape_json(model);
  for (const auto& [key, value] : shape.items()) {
    if (old_shape.at(key) != value) json[key] = value;
  }
  if (was.experts.dense_layers != model.experts.dense_layers) json["decoder_sparse_step"] = 1;  // the list says it all
  const HfExperts& experts = hf_family(model.family).experts;
  if (experts.other_count && json.contains(experts.other_count)) json[experts.other_count] = model.experts.count;
  if (model.max_seq_len > was.max_seq_len) json[hf_family(model.family).positions] = model.max_seq_len;
  if (!model.traits().learned_positions && (was.rope_theta != model.rope_theta || was.rope_scaling != model.rope_scaling))
    set_rope(model, json);
  set_no_further_layers(model, json);
  return json;
}

void set_hf_dtype(Json& config, std::string_view dtype) {
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = dtype;
}

}  // namespace lockstep::arch

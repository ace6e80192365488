#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/hf_reading.h"
#include "lockstep/arch/hf_shape.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::arch {
namespace {

using Expect = std::function<void(bool holds, std::string text)>;

[[noreturn]] void refuse(const ModelConfig& m, const std::vector<std::string>& problems) {
  throw ConfigError({.code = "LS1123", .what = cat("transformers' ", hf_family(m.family).language_model, " cannot be this model:\n  ",
                                                   join(problems, "\n  "))});
}

void require_experts(const ModelConfig& m, const Expect& expect) {
  const HfExperts& theirs = hf_family(m.family).experts;
  const ExpertSizes& sizes = m.experts;
  expect((theirs.count != nullptr) == m.has_experts(), theirs.count ? "no experts" : "experts");
  if (!theirs.count || !m.has_experts()) return;
  expect(theirs.clamped == (sizes.clamp > 0), theirs.clamped ? "experts that are not clamped" : "clamped experts");
  expect(theirs.clamped == sizes.biases, theirs.clamped ? "experts without biases" : "biases of experts");
  expect(theirs.clamped == sizes.logit_bias, theirs.clamped ? "no bias of the router's logits" : "a bias of the router's logits");
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

void require_state_space(const ModelConfig& m, const Expect& expect) {
  const HfStateSpace& theirs = hf_family(m.family).state_space;
  expect((theirs.heads != nullptr) == m.has_state_space(), theirs.heads ? "no state space" : "state spaces");
  if (!theirs.heads || !m.has_state_space()) return;
  const StateSpaceSizes& s = m.state_space;
  expect(s.norm_groups == s.groups || (theirs.norm && s.norm_groups == 0), cat("norms over ", s.norm_groups, " groups beside ", s.groups, " of B and C"));
  if (theirs.expand)
    expect(s.inner() % m.hidden == 0,
           cat("state_heads(", s.heads, ") x state_head_size(", s.head_size, ") % hidden(", m.hidden, ") = ", s.inner() % m.hidden));
}

// LS1123 with what of the model no key of its family can say. What this does not name, require_same() finds.
void require_writable(const ModelConfig& m) {
  const HfFamily& family = hf_family(m.family);
  const FamilyTraits& traits = m.traits();
  std::vector<std::string> problems;
  const Expect expect = [&](bool holds, std::string text) {
    if (!holds) problems.push_back(std::move(text));
  };
  if (family.plain_heads) {
    expect(m.heads * m.head_size == m.hidden,
           cat("heads(", m.heads, ") x head_size(", m.head_size, ") is not hidden(", m.hidden, ")"));
    expect(m.kv_heads == m.heads, cat("kv_heads(", m.kv_heads, ") is not heads(", m.heads, ")"));
  }
  if (family.attention_bias_key)
    expect(m.qkv_bias == m.out_bias, "biases of q, k, v and of attention's output only together");
  else
    expect(m.qkv_bias == traits.qkv_bias && m.out_bias == traits.out_bias, "other biases of attention than the family's");
  if (!family.mlp_bias_key) expect(m.mlp_bias == traits.mlp_bias, "other biases of the MLP than the family's");
  expect(m.qk_norm == traits.qk_norm, "norms of q and k");
  expect(m.has_latent() == traits.latent, traits.latent ? "no latent attention" : "latent attention");
  if (traits.learned_positions) expect(m.rope_scaling == RopeScaling{}, "rope scaling");
  require_experts(m, expect);
  require_state_space(m, expect);
  if (!problems.empty()) refuse(m, problems);
}

// The model without what has no effect, or is no part of its computation.
ModelConfig effective(ModelConfig m) {
  set_layer_blocks(m, layer_blocks(m));
  m.dropout = 0;
  m.max_seq_len = 0;
  bool attends = m.blocks.empty(), turns = m.blocks.empty(), turns_locally = false, mlp = m.blocks.empty();
  for (const BlockSpec& block : m.blocks)
    for (const Branch& branch : block) {
      const bool attention = branch.kind == "attention";
      attends |= attention;
      turns |= attention && branch.rotation == Rotation::kUsual;
      turns_locally |= attention && branch.rotation == Rotation::kLocal;
      mlp |= branch.kind == "mlp";
    }
  if (m.has_experts() && m.experts.dense_layers.empty()) mlp = false;
  const ModelConfig plain{.family = m.family};
  if (!turns_locally) m.rope_local_theta = 0;
  if (!turns && !turns_locally) m.rotary_size = 0;
  if (!turns || m.traits().learned_positions) m.rope_theta = 0, m.rope_scaling = {};
  if (m.rotary_size == m.head_size) m.rotary_size = 0;
  if (!attends) {
    m.heads = m.kv_heads = m.head_size = 0;
    m.qkv_bias = plain.qkv_bias, m.out_bias = plain.out_bias, m.qk_norm = plain.qk_norm;
  }
  if (!mlp) m.ffn = 0, m.mlp_bias = plain.mlp_bias;
  if (!mlp && !m.has_experts()) m.activation = plain.activation;
  return m;
}

// LS1123 where transformers makes another model of the file.
void require_same(const ModelConfig& model, const Json& json) {
  ModelConfig theirs;
  try {
    theirs = effective(parse_hf_config(json, nullptr, "config.json").model);
  } catch (const DataError& error) {
    refuse(model, {error.message().what});
  }
  const ModelConfig ours = effective(model);
  std::vector<std::string> problems;
  const auto same = [&](bool holds, const char* what) {
    if (!holds) problems.emplace_back(what);
  };
  same(ours.layers == theirs.layers && ours.blocks == theirs.blocks, "other blocks than the family's: branches, norms, windows or rotation");
  same(ours.sliding_window == theirs.sliding_window, "sliding_window");
  same(ours.attention_scale == theirs.attention_scale, "attention_scale");
  same(ours.attention_sinks == theirs.attention_sinks, "attention sinks");
  same(ours.embedding_scale == theirs.embedding_scale, "embedding_scale");
  same(ours.activation == theirs.activation, "the activation");
  same(ours.rotary_size == theirs.rotary_size && ours.rope_theta == theirs.rope_theta && ours.rope_local_theta == theirs.rope_local_theta &&
           ours.rope_scaling == theirs.rope_scaling, "rotary positions");
  same(ours.state_space == theirs.state_space, "the state space");
  same(ours.multipliers == theirs.multipliers, "multipliers");
  if (problems.empty() && ours != theirs) problems.emplace_back("sizes or options that its config.json has no keys for");
  if (!problems.empty()) refuse(model, problems);
}

// None are exported, and a missing key means one.
void set_no_further_layers(const ModelConfig& m, Json& json) {
  if (m.has_latent()) json[kFurtherLayersKey] = 0;
}

Json new_config(const ModelConfig& m) {
  require_writable(m);
  const HfFamily& family = hf_family(m.family);
  Json json = hf_shape_json(m);
  json["architectures"] = Json::array({family.language_model});
  if (family.positions) json[family.positions] = m.max_seq_len;
  // Those of the class would be other tokens here.
  json["bos_token_id"] = json["eos_token_id"] = nullptr;
  if (family.writes_rope_parameters || family.state_space.heads) json["pad_token_id"] = nullptr;
  if (m.traits().learned_positions) {
    json["resid_pdrop"] = json["embd_pdrop"] = m.dropout;
    json["attn_pdrop"] = 0.0;
  } else if (family.heads) {
    json["attention_dropout"] = 0.0;
  }
  if (family.blocks == HfBlocks::kParallel) json["hidden_dropout"] = m.dropout;
  set_no_further_layers(m, json);
  set_hf_rope(m, json);
  require_same(m, json);
  return json;
}

}  // namespace

Json hf_config_json(const ModelConfig& model, const Json* original) {
  if (!original) return new_config(model);
  const ModelConfig was = parse_hf_config(*original, nullptr, "the original config.json").model;
  if (was.family != model.family)
    throw ConfigError({.code = "LS1123", .what = cat("a ", family_name(model.family), " model with the config.json of a ",
                                                     family_name(was.family))});
  require_writable(model);
  Json json = *original;
  const Json old_shape = hf_shape_json(was), shape = hf_shape_json(model);
  for (const auto& [key, value] : shape.items())
    if (!old_shape.contains(key) || old_shape.at(key) != value) json[key] = value;
  if (was.experts.dense_layers != model.experts.dense_layers) json["decoder_sparse_step"] = 1;  // the list says it all
  const HfExperts& experts = hf_family(model.family).experts;
  if (experts.other_count && json.contains(experts.other_count)) json[experts.other_count] = model.experts.count;
  if (const char* positions = hf_family(model.family).positions; positions && model.max_seq_len > was.max_seq_len)
    json[positions] = model.max_seq_len;
  const bool turned = was.rope_theta == model.rope_theta && was.rope_scaling == model.rope_scaling && was.rotated() == model.rotated() &&
                      was.rope_local_theta == model.rope_local_theta;
  if (!turned) set_hf_rope(model, json);
  set_no_further_layers(model, json);
  require_same(model, json);
  return json;
}

void set_hf_dtype(Json& config, std::string_view dtype) {
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = dtype;
}

}  // namespace lockstep::arch

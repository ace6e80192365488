// The model's sizes as JSON.
#include <algorithm>
#include <array>

#include "lockstep/arch/model_config.h"
#include "lockstep/arch/model_findings.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::arch {

namespace {

// In the order of the enumerations.
constexpr std::array<std::string_view, 5> kActivations = {"gelu_tanh", "gelu", "relu2", "swiglu", "geglu"};
constexpr std::array<std::string_view, 3> kRotations = {"usual", "local", "none"};

template <typename Enum, size_t n>
Enum value_of(const std::array<std::string_view, n>& words, const std::string& word, const char* what) {
  const auto found = std::ranges::find(words, word);
  if (found == words.end()) throw std::invalid_argument(cat("unknown ", what, " \"", word, "\""));
  return static_cast<Enum>(found - words.begin());
}
template <typename Enum, size_t n>
std::string_view word_of(const std::array<std::string_view, n>& words, Enum value) {
  return words.at(static_cast<size_t>(value));
}

}  // namespace

void to_json(Json& json, Activation activation) { json = word_of(kActivations, activation); }
void from_json(const Json& json, Activation& activation) {
  activation = value_of<Activation>(kActivations, json.get<std::string>(), "activation");
}

// What is usual is left out: a list of usual branches is the same text as ever.
void to_json(Json& json, const Branch& branch) {
  json = {{"kind", branch.kind}, {"name", branch.name}, {"norm_before", branch.norm_before}, {"norm_behind", branch.norm_behind}, {"beside", branch.beside}};
  if (branch.window) json["window"] = *branch.window;
  if (branch.rotation != Rotation::kUsual) json["rotation"] = word_of(kRotations, branch.rotation);
}
void from_json(const Json& json, Branch& branch) {
  json.at("kind").get_to(branch.kind);
  json.at("name").get_to(branch.name);
  json.at("norm_before").get_to(branch.norm_before);
  json.at("norm_behind").get_to(branch.norm_behind);
  json.at("beside").get_to(branch.beside);
  if (json.contains("window")) branch.window = json.at("window").get<int64_t>();
  if (json.contains("rotation")) branch.rotation = value_of<Rotation>(kRotations, json.at("rotation").get<std::string>(), "rotation");
}

namespace {

// One list of keys for both directions.
template <typename Model, typename Visit>
void visit_all(Model& model, Visit visit) {
  visit_sizes(model, visit);
  visit("tied", model.tied);
  visit("norm_eps", model.norm_eps);
  visit("rope_theta", model.rope_theta);
  visit("dropout", model.dropout);
}

// These are written where they differ from what the family has of itself, and read as that where they are missing:
// a model that needs none of them is the same text as ever.
template <typename Model, typename Visit>
void visit_options(Model& model, Visit visit) {
  visit("qkv_bias", model.qkv_bias);
  visit("out_bias", model.out_bias);
  visit("mlp_bias", model.mlp_bias);
  visit("qk_norm", model.qk_norm);
  visit("sliding_window", model.sliding_window);
  visit("activation", model.activation);
  visit("rotary_size", model.rotary_size);
  visit("rope_local_theta", model.rope_local_theta);
  visit("attention_scale", model.attention_scale);
  visit("attention_sinks", model.attention_sinks);
  visit("embedding_scale", model.embedding_scale);
}

// Written where it differs from that of usual experts.
template <typename Experts, typename Visit>
void visit_expert_options(Experts& experts, Visit visit) {
  visit("logit_bias", experts.logit_bias);
  visit("biases", experts.biases);
  visit("clamp", experts.clamp);
}

// Of a model that has one that is not 1.
template <typename Factors, typename Visit>
void visit_multipliers(Factors& factors, Visit visit) {
  visit("attention_in", factors.attention_in);
  visit("key", factors.key);
  visit("attention_out", factors.attention_out);
  visit("state_in", factors.state_in);
  visit("state_out", factors.state_out);
  visit("z", factors.z);
  visit("x", factors.x);
  visit("b", factors.b);
  visit("c", factors.c);
  visit("dt", factors.dt);
  visit("gate", factors.gate);
  visit("down", factors.down);
  visit("logits", factors.logits);
}

// Of a model with state spaces alone.
template <typename Sizes, typename Visit>
void visit_state_space(Sizes& sizes, Visit visit) {
  visit("heads", sizes.heads);
  visit("head_size", sizes.head_size);
  visit("groups", sizes.groups);
  visit("state", sizes.state);
  visit("convolution", sizes.convolution);
  visit("chunk", sizes.chunk);
  visit("norm_groups", sizes.norm_groups);
  visit("convolution_bias", sizes.convolution_bias);
  visit("projection_bias", sizes.projection_bias);
  visit("step_least", sizes.step_least);
  visit("step_most", sizes.step_most);
}

template <typename Scaling, typename Visit>
void visit_rope_scaling(Scaling& scaling, Visit visit) {
  visit("factor", scaling.factor);
  if (scaling.kind != RopeScaling::Kind::kYarn) {
    visit("low_freq_factor", scaling.low_freq_factor);
    visit("high_freq_factor", scaling.high_freq_factor);
  }
  visit("original_max_position_embeddings", scaling.original_max_position_embeddings);
  if (scaling.kind != RopeScaling::Kind::kYarn) return;
  visit("beta_fast", scaling.beta_fast);
  visit("beta_slow", scaling.beta_slow);
  visit("mscale", scaling.mscale);
  visit("mscale_all_dim", scaling.mscale_all_dim);
  visit("attention_factor", scaling.attention_factor);
}

// Of a model with latent attention alone.
template <typename Latent, typename Visit>
void visit_latent(Latent& latent, Visit visit) {
  visit("q_rank", latent.q_rank);
  visit("kv_rank", latent.kv_rank);
  visit("nope", latent.nope);
  visit("rope", latent.rope);
  visit("value", latent.value);
  visit("interleaved", latent.interleaved);
}

// Of a model with experts alone. The words of routers are those of the configuration.
template <typename Experts, typename Visit>
void visit_experts(Experts& experts, Visit visit) {
  visit("count", experts.count);
  visit("per_token", experts.per_token);
  visit("ffn", experts.ffn);
  visit("shared", experts.shared);
  visit("groups", experts.groups);
  visit("top_groups", experts.top_groups);
  visit("routed_scale", experts.routed_scale);
  visit("router_bias", experts.router_bias);
  visit("dense_layers", experts.dense_layers);
}

config::Router router_of(const std::string& name) {
  const config::Words words = config::choices_of(config::Router{});
  const auto found = std::ranges::find(words, name);
  if (found == words.end()) throw std::invalid_argument("unknown router \"" + name + "\"");
  return static_cast<config::Router>(found - words.begin());
}

std::string_view scaling_name(RopeScaling::Kind kind) {
  if (kind == RopeScaling::Kind::kYarn) return "yarn";
  return kind == RopeScaling::Kind::kLlama3 ? "llama3" : "linear";
}

RopeScaling::Kind scaling_kind(const std::string& name) {
  for (const RopeScaling::Kind kind : {RopeScaling::Kind::kLlama3, RopeScaling::Kind::kLinear, RopeScaling::Kind::kYarn})
    if (name == scaling_name(kind)) return kind;
  throw std::invalid_argument("unknown rope scaling \"" + name + "\"");
}

// A file may say anything: what is computed with these sizes must not leave 64 bits, nor divide by zero.
void require_sound(const ModelConfig& model, std::string& reading) {
  visit_sizes(model, [&](const char* key, int64_t value) {
    reading = key;
    const int64_t most = most_of_size(key);
    if (value < 1 || value > most) throw std::invalid_argument(cat(value, " is not within 1 to ", most));
  });
  reading = "sliding_window";
  if (model.sliding_window < 0) throw std::invalid_argument(cat(model.sliding_window, " is below 0"));
  reading = "heads";
  if (const std::vector<std::string> problems = size_problems(model); !problems.empty())
    throw std::invalid_argument(join(problems, "; "));
}

// Of `value` what `visit` sees and is not as in `usual`.
template <typename Value, typename VisitEach>
void write_others(const Value& value, const Value& usual, VisitEach visit, Json& json) {
  Json known;
  visit(usual, [&](const char* key, const auto& of) { known[key] = of; });
  visit(value, [&](const char* key, const auto& of) {
    if (const Json text = of; known[key] != text) json[key] = text;
  });
}

Json experts_json(const ExpertSizes& sizes) {
  Json json;
  visit_experts(sizes, [&](const char* key, const auto& value) { json[key] = value; });
  json["router"] = config::name_of(sizes.router);
  write_others(sizes, ExpertSizes(), [](const auto& of, const auto& visit) { visit_expert_options(of, visit); }, json);
  return json;
}

}  // namespace

Json model_json(const ModelConfig& model) {
  Json json = {{"family", family_name(model.family)}};
  const auto writer = [](Json& to) { return [&to](const char* key, const auto& value) { to[key] = value; }; };
  visit_all(model, writer(json));
  write_others(model, ModelConfig{.family = model.family}, [](const auto& of, const auto& visit) { visit_options(of, visit); }, json);
  if (model.rope_scaling.kind != RopeScaling::Kind::kNone) {
    Json& scaling = json["rope_scaling"];
    scaling["kind"] = scaling_name(model.rope_scaling.kind);
    visit_rope_scaling(model.rope_scaling, writer(scaling));
    if (!model.rope_scaling.truncate) scaling["truncate"] = false;
  }
  if (!model.blocks.empty()) json["blocks"] = model.blocks;
  if (model.has_latent()) visit_latent(model.latent, writer(json["latent"]));
  if (model.has_state_space()) visit_state_space(model.state_space, writer(json["state_space"]));
  if (model.has_experts()) json["experts"] = experts_json(model.experts);
  if (model.multipliers != Multipliers()) visit_multipliers(model.multipliers, writer(json["multipliers"]));
  return json;
}

ModelConfig parse_model_json(const Json& json, std::string_view origin) {
  ModelConfig model;
  std::string reading = "family";
  const auto read = [&](const Json& from, const char* key, auto& value) {
    reading = key;
    value = from.at(key).template get<std::remove_reference_t<decltype(value)>>();
  };
  try {
    const std::string name = json.at("family");
    const std::optional<Family> family = family_of(name);
    if (!family) throw std::invalid_argument("unknown family \"" + name + "\"");
    model = ModelConfig{.family = *family};
    visit_all(model, [&](const char* key, auto& value) { read(json, key, value); });
    visit_options(model, [&](const char* key, auto& value) {
      if (json.contains(key)) read(json, key, value);
    });
    if (json.contains("rope_scaling")) {
      const Json& scaling = json.at(reading = "rope_scaling");
      model.rope_scaling.kind = scaling_kind(scaling.at("kind"));
      visit_rope_scaling(model.rope_scaling, [&](const char* key, auto& value) { read(scaling, key, value); });
      if (scaling.contains("truncate")) read(scaling, "truncate", model.rope_scaling.truncate);
    }
    if (json.contains("blocks")) read(json, "blocks", model.blocks);
    if (json.contains("latent")) {
      const Json& latent = json.at(reading = "latent");
      visit_latent(model.latent, [&](const char* key, auto& value) { read(latent, key, value); });
      reading = "kv_rank";
      if (model.latent.kv_rank < 1) throw std::invalid_argument(cat(model.latent.kv_rank, " numbers of a latent"));
    }
    if (json.contains("state_space")) {
      const Json& sizes = json.at(reading = "state_space");
      visit_state_space(model.state_space, [&](const char* key, auto& value) { read(sizes, key, value); });
      reading = "heads";
      if (model.state_space.heads < 1) throw std::invalid_argument(cat(model.state_space.heads, " heads of a state space"));
    }
    if (json.contains("experts")) {
      const Json& experts = json.at(reading = "experts");
      visit_experts(model.experts, [&](const char* key, auto& value) { read(experts, key, value); });
      visit_expert_options(model.experts, [&](const char* key, auto& value) {
        if (experts.contains(key)) read(experts, key, value);
      });
      model.experts.router = router_of(experts.at(reading = "router"));
      reading = "count";
      if (model.experts.count < 1) throw std::invalid_argument(cat(model.experts.count, " experts"));
    }
    if (json.contains("multipliers")) {
      const Json& factors = json.at(reading = "multipliers");
      visit_multipliers(model.multipliers, [&](const char* key, auto& value) { read(factors, key, value); });
    }
    require_sound(model, reading);
  } catch (const std::exception& error) {
    throw CheckpointError({.code = "LS1312", .what = cat("model key \"", reading, "\": ", error.what()),
                           .where = std::string(origin)});
  }
  return model;
}

}  // namespace lockstep::arch

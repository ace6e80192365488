// The model's sizes as JSON.
#include <algorithm>

#include "lockstep/arch/model_config.h"
#include "lockstep/arch/model_findings.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::arch {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Branch, kind, name, norm_before, norm_behind, beside)

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

}  // namespace

Json model_json(const ModelConfig& model) {
  Json json = {{"family", family_name(model.family)}};
  visit_all(model, [&](const char* key, const auto& value) { json[key] = value; });
  const ModelConfig plain{.family = model.family};
  Json usual;
  visit_options(plain, [&](const char* key, const auto& value) { usual[key] = value; });
  visit_options(model, [&](const char* key, const auto& value) {
    if (usual[key] != value) json[key] = value;
  });
  if (model.rope_scaling.kind != RopeScaling::Kind::kNone) {
    Json& scaling = json["rope_scaling"];
    scaling["kind"] = scaling_name(model.rope_scaling.kind);
    visit_rope_scaling(model.rope_scaling, [&](const char* key, const auto& value) { scaling[key] = value; });
  }
  if (!model.blocks.empty()) json["blocks"] = model.blocks;
  if (model.has_latent()) {
    Json& latent = json["latent"];
    visit_latent(model.latent, [&](const char* key, const auto& value) { latent[key] = value; });
  }
  if (model.has_experts()) {
    Json& experts = json["experts"];
    visit_experts(model.experts, [&](const char* key, const auto& value) { experts[key] = value; });
    experts["router"] = config::name_of(model.experts.router);
  }
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
    }
    if (json.contains("blocks")) read(json, "blocks", model.blocks);
    if (json.contains("latent")) {
      const Json& latent = json.at(reading = "latent");
      visit_latent(model.latent, [&](const char* key, auto& value) { read(latent, key, value); });
      reading = "kv_rank";
      if (model.latent.kv_rank < 1) throw std::invalid_argument(cat(model.latent.kv_rank, " numbers of a latent"));
    }
    if (json.contains("experts")) {
      const Json& experts = json.at(reading = "experts");
      visit_experts(model.experts, [&](const char* key, auto& value) { read(experts, key, value); });
      model.experts.router = router_of(experts.at(reading = "router"));
      reading = "count";
      if (model.experts.count < 1) throw std::invalid_argument(cat(model.experts.count, " experts"));
    }
    require_sound(model, reading);
  } catch (const std::exception& error) {
    throw CheckpointError({.code = "LS1312", .what = cat("model key \"", reading, "\": ", error.what()),
                           .where = std::string(origin)});
  }
  return model;
}

}  // namespace lockstep::arch

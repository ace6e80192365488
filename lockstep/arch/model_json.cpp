// The model's sizes as JSON.
#include "lockstep/arch/model_config.h"
#include "lockstep/arch/model_findings.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

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
  visit("low_freq_factor", scaling.low_freq_factor);
  visit("high_freq_factor", scaling.high_freq_factor);
  visit("original_max_position_embeddings", scaling.original_max_position_embeddings);
}

RopeScaling::Kind scaling_kind(const std::string& name) {
  if (name == "llama3") return RopeScaling::Kind::kLlama3;
  if (name == "linear") return RopeScaling::Kind::kLinear;
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
    scaling["kind"] = model.rope_scaling.kind == RopeScaling::Kind::kLlama3 ? "llama3" : "linear";
    visit_rope_scaling(model.rope_scaling, [&](const char* key, const auto& value) { scaling[key] = value; });
  }
  if (!model.blocks.empty()) json["blocks"] = model.blocks;
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
    require_sound(model, reading);
  } catch (const std::exception& error) {
    throw CheckpointError({.code = "LS1312", .what = cat("model key \"", reading, "\": ", error.what()),
                           .where = std::string(origin)});
  }
  return model;
}

}  // namespace lockstep::arch
